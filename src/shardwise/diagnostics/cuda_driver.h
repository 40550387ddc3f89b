// What the NVIDIA driver says, without the CUDA runtime: the driver library is opened at run time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace shardwise::diagnostics {

struct CudaDevice {
  std::string name;
  std::size_t bytes = 0;  // memory of the device
  int capability = 0;     // 10 * major + minor
};

struct CudaDriver {
  std::string problem;  // empty: the driver works
  int version = 0;      // highest CUDA version it runs: 1000 * major + 10 * minor
  std::vector<CudaDevice> devices;
};

// Looks only: makes no context and takes no memory on a device.
CudaDriver query_cuda_driver();

// 13000 -> "13.0"
std::string cuda_version_text(int version);

}  // namespace shardwise::diagnostics
