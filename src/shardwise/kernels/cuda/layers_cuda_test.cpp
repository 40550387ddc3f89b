// The layers' functions on CUDA: the cases of the CPU, against the same references in double. Skips
// where no device is present.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "shardwise/base/check.h"
#include "shardwise/kernels/activation_cases.h"
#include "shardwise/kernels/cross_entropy_cases.h"
#include "shardwise/kernels/embedding_cases.h"
#include "shardwise/kernels/norm_cases.h"
#include "shardwise/kernels/rope_cases.h"

namespace shardwise::kernels {
namespace {

void require(cudaError_t status) { SW_CHECK(status == cudaSuccess, cudaGetErrorString(status)); }

class CudaPlace : public testing::TestPlace {
 public:
  CudaPlace() {
    place.cuda = true;
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    place.stream = stream_;
  }
  ~CudaPlace() override { cudaStreamDestroy(stream_); }
  std::shared_ptr<void> upload(const void* host, std::size_t bytes, std::size_t shift) override {
    void* memory = nullptr;
    require(cudaMalloc(&memory, bytes + shift + 1));
    const std::shared_ptr<void> owner(memory, [](void* p) { cudaFree(p); });
    void* data = static_cast<char*>(memory) + shift;
    require(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice));
    require(cudaDeviceSynchronize());  // the copy's last part may still be on its way
    return {owner, data};
  }
  void download(const void* from, void* host, std::size_t bytes) override {
    require(cudaStreamSynchronize(stream_));
    require(cudaMemcpy(host, from, bytes, cudaMemcpyDeviceToHost));
  }

 private:
  cudaStream_t stream_ = nullptr;
};

class LayersCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(status);
    }
    place_ = std::make_unique<CudaPlace>();
  }
  std::unique_ptr<CudaPlace> place_;
};

TEST_F(LayersCuda, Norms) { testing::check_norms(*place_); }

TEST_F(LayersCuda, Rope) { testing::check_rope(*place_); }

TEST_F(LayersCuda, Activations) { testing::check_activations(*place_); }

TEST_F(LayersCuda, CrossEntropy) { testing::check_cross_entropy(*place_); }

TEST_F(LayersCuda, Embeddings) { testing::check_embeddings(*place_); }

}  // namespace
}  // namespace shardwise::kernels
