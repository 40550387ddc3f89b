// For tests on a CUDA device: they are skipped where there is none.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "shardwise/base/check.h"
#include "shardwise/kernels/types.h"

namespace shardwise::kernels::testing {

inline void require(cudaError_t status) {
  SW_CHECK(status == cudaSuccess, cudaGetErrorString(status));
}

// With a stream of its own.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(status);
    }
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    place_.cuda = true;
    place_.stream = stream_;
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      require(cudaStreamDestroy(stream_));
    }
  }
  void wait() { require(cudaStreamSynchronize(stream_)); }

  Place place_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace shardwise::kernels::testing
