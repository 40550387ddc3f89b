// Rotary embeddings on the CPU against their formula.
#include "shardwise/kernels/rope.h"

#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "shardwise/kernels/rope_cases.h"

namespace shardwise::kernels {
namespace {

TEST(RopeKernel, EqualsItsFormula) {
  testing::CpuPlace place;
  testing::check_rope(place);
}

TEST(RopeKernel, EqualsItsFormulaOnThreads) {
  const ParallelFor threads = testing::threads_for_test();
  testing::CpuPlace place(&threads);
  testing::check_rope_case(place, {2000, 4, 1, 64, 32, false, true, 0}, DType::kFloat32);
}

TEST(RopeKernel, RefusesOddAndTooManyDimensions) {
  const RopeShape odd{.tokens = 1, .row_stride = 8, .heads = 1, .head_dim = 8, .rotary_dim = 3};
  EXPECT_THROW(rope(Place{}, odd, nullptr, nullptr, nullptr, nullptr, nullptr), InternalError);
  const RopeShape wide{.tokens = 1, .row_stride = 8, .heads = 1, .head_dim = 8, .rotary_dim = 10};
  EXPECT_THROW(rope(Place{}, wide, nullptr, nullptr, nullptr, nullptr, nullptr), InternalError);
}

}  // namespace
}  // namespace shardwise::kernels
