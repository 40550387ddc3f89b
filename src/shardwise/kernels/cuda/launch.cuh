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

}  // namespace shardwise::kernels::cuda
