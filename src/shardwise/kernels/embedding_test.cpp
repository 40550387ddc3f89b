// Gradients of embeddings on the CPU against a plain loop.
#include "shardwise/kernels/embedding.h"

#include <gtest/gtest.h>

#include "shardwise/kernels/embedding_cases.h"

namespace shardwise::kernels {
namespace {

TEST(EmbeddingKernel, EqualsAPlainLoop) {
  testing::CpuPlace place;
  testing::check_embeddings(place);
}

TEST(EmbeddingKernel, EqualsAPlainLoopOnThreads) {
  const ParallelFor threads = testing::threads_for_test();
  testing::CpuPlace place(&threads);
  testing::check_embedding_case(place, {200, 500, 20, 3, true, false, 0}, DType::kBFloat16);
}

}  // namespace
}  // namespace shardwise::kernels
