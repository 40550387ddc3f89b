// Norms on the CPU against their formulas.
#include "shardwise/kernels/norm.h"

#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "shardwise/kernels/norm_cases.h"

namespace shardwise::kernels {
namespace {

TEST(Norm, EqualsItsFormula) {
  testing::CpuPlace place;
  testing::check_norms(place);
}

TEST(Norm, EqualsItsFormulaOnThreads) {
  const ParallelFor threads = testing::threads_for_test();
  testing::CpuPlace place(&threads);
  testing::check_norm_forward(place, {300, 500, true, true, true, false, 0}, DType::kBFloat16);
  testing::check_norm_backward(place, {300, 500, true, true, true, false, 0}, DType::kBFloat16);
}

TEST(Norm, RefusesWhatItCannotDo) {
  EXPECT_THROW(norm_forward(Place{}, {.rows = 1, .width = kMaxNormWidth + 1}, {}), InternalError);
  EXPECT_THROW(norm_forward(Place{}, {.rows = 1, .width = 0}, {}), InternalError);
}

}  // namespace
}  // namespace shardwise::kernels
