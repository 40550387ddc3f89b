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

using testing::Array;
using testing::require;
using testing::untouched;

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

struct Outcome {
  Array gradients, losses;
};
Outcome cross_entropy_of(testing::TestPlace& place, const Array& logits,
                         const std::vector<std::int64_t>& targets) {
  const auto rows = static_cast<std::int64_t>(targets.size());
  const std::int64_t vocabulary = static_cast<std::int64_t>(logits.size()) / rows;
  testing::PlacedArray gradients(place, logits), losses(place, untouched(DType::kFloat32, rows));
  testing::Placed<std::int64_t> placed(place, targets);
  cross_entropy(
      place.place,
      {.dtype = logits.dtype, .rows = rows, .vocabulary = vocabulary, .row_stride = vocabulary}, {},
      {.logits = gradients.data(), .targets = placed.data(), .losses = losses.data()});
  return {gradients.fetch(), losses.fetch()};
}

// Rows that clusters of eight blocks take one after the other, with ignored ones between, come out
// as they do in clusters of their own. Neighbours of a cluster differ, whose number is a device's.
TEST_F(LayersCuda, CrossEntropyRowAfterRow) {
  constexpr std::size_t kRows = 211, kKinds = 7, kVocabulary = 131080;
  CudaPlace place(place_);
  const Array kinds = testing::random_array(DType::kBFloat16, kKinds * kVocabulary, 1, -8.0F, 8.0F);
  const Outcome alone =
      cross_entropy_of(place, kinds, std::vector<std::int64_t>(kKinds, kVocabulary - 1));
  const auto bytes_of = [](const Array& array, std::size_t row) {
    const auto begin = array.bytes.begin() + static_cast<std::ptrdiff_t>(2 * kVocabulary * row);
    return std::vector<std::uint8_t>(begin, begin + 2 * kVocabulary);
  };
  Array logits(DType::kBFloat16, {});
  std::vector<std::int64_t> targets(kRows, kVocabulary - 1);
  for (std::size_t row = 0; row < kRows; ++row) {
    const std::vector<std::uint8_t> kind = bytes_of(kinds, row % kKinds);
    logits.bytes.insert(logits.bytes.end(), kind.begin(), kind.end());
    if (row % 5 == 3 || (row >= 60 && row < 110)) {  // for some rounds of all clusters
      targets[row] = CrossEntropyRule{}.ignored;
    }
  }
  const Outcome found = cross_entropy_of(place, logits, targets);
  for (std::size_t row = 0; row < kRows; ++row) {
    const bool ignored = targets[row] == CrossEntropyRule{}.ignored;
    EXPECT_EQ(found.losses.get(row), ignored ? 0.0 : alone.losses.get(row % kKinds)) << row;
    EXPECT_TRUE(bytes_of(found.gradients, row) == (ignored
                                                       ? std::vector<std::uint8_t>(2 * kVocabulary)
                                                       : bytes_of(alone.gradients, row % kKinds)))
        << row;
  }
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
