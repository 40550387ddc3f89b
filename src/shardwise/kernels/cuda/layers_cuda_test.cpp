// The layers' functions on CUDA: the cases of the CPU, against the same references in double. Skips
// where no device is present.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "shardwise/kernels/activation_cases.h"
#include "shardwise/kernels/cross_entropy_cases.h"
#include "shardwise/kernels/cuda/cuda_test.h"
#include "shardwise/kernels/embedding_cases.h"
#include "shardwise/kernels/float8_cases.h"
#include "shardwise/kernels/norm_cases.h"
#include "shardwise/kernels/rope_cases.h"

namespace shardwise::kernels {
namespace {

using testing::require;

class CudaPlace : public testing::TestPlace {
 public:
  explicit CudaPlace(const Place& with_stream) { place = with_stream; }
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
    require(cudaStreamSynchronize(static_cast<cudaStream_t>(place.stream)));
    require(cudaMemcpy(host, from, bytes, cudaMemcpyDeviceToHost));
  }
};

class LayersCuda : public testing::CudaTest {};

TEST_F(LayersCuda, Norms) {
  CudaPlace place(place_);
  testing::check_norms(place);
}

TEST_F(LayersCuda, Rope) {
  CudaPlace place(place_);
  testing::check_rope(place);
}

TEST_F(LayersCuda, Activations) {
  CudaPlace place(place_);
  testing::check_activations(place);
}

TEST_F(LayersCuda, CrossEntropy) {
  CudaPlace place(place_);
  testing::check_cross_entropy(place);
}

TEST_F(LayersCuda, Embeddings) {
  CudaPlace place(place_);
  testing::check_embeddings(place);
}

TEST_F(LayersCuda, Float8) {
  CudaPlace place(place_);
  testing::check_float8(place);
}

}  // namespace
}  // namespace shardwise::kernels
