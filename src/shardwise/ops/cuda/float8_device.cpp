#include <cuda_runtime_api.h>

#include "shardwise/ops/float8.h"

namespace shardwise::ops {

bool has_float8_products(at::Device device) {
  int major = 0, minor = 0;
  const auto ask = [&](int* value, cudaDeviceAttr attribute) {
    return cudaDeviceGetAttribute(value, attribute, device.has_index() ? device.index() : 0) ==
           cudaSuccess;
  };
  return device.is_cpu() ||
         (ask(&major, cudaDevAttrComputeCapabilityMajor) &&
          ask(&minor, cudaDevAttrComputeCapabilityMinor) && 10 * major + minor >= 89);
}

}  // namespace shardwise::ops
