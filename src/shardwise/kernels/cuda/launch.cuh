// Checks around launches, and the stream of a Place.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "shardwise/base/check.h"
#include "shardwise/kernels/types.h"

namespace shardwise::kernels::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    SW_FAIL(InternalError, "CUDA: ", what, ": ", cudaGetErrorName(status), ": ",
            cudaGetErrorString(status));
  }
}

// After every launch: reports a launch that was refused, and sticky errors of earlier work.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

inline cudaStream_t stream_of(const Place& place) {
  return static_cast<cudaStream_t>(place.stream);
}

inline unsigned grid_size(std::int64_t blocks) {
  SW_CHECK(blocks <= 0x7FFFFFFF, "grid of ", blocks, " blocks");
  return static_cast<unsigned>(blocks);
}

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&value, attribute, device), "device attribute");
  return value;
}

inline int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

// Clusters of blocks, and kernels that begin behind others, came with Hopper.
inline bool is_hopper_or_newer() {
  return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

// Launches a kernel whose blocks may begin while the kernel before it in the stream still runs, and
// which call wait_for_kernel_before() before they touch memory: the time to start a kernel is
// hidden, all of it where the kernel before calls let_kernel_behind_begin() too. That comes after
// the latter's own wait, so that a kernel begins when everything before its predecessor is done.
template <typename... Parameters, typename... Arguments>
void launch_behind(void (*kernel)(Parameters...), dim3 grid, dim3 threads, int shared_bytes,
                   const Place& place, const Arguments&... arguments) {
  cudaLaunchAttribute behind = {};
  behind.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  behind.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream_of(place);
  config.attrs = &behind;
  config.numAttrs = is_hopper_or_newer() ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "launch");
}

}  // namespace shardwise::kernels::cuda
