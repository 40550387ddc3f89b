// Cross-entropy on the CPU against its formula.
#include "shardwise/kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include "shardwise/kernels/cross_entropy_cases.h"

namespace shardwise::kernels {
namespace {

TEST(CrossEntropy, EqualsItsFormula) {
  testing::CpuPlace place;
  testing::check_cross_entropy(place);
}

TEST(CrossEntropy, EqualsItsFormulaOnThreads) {
  const ParallelFor threads = testing::threads_for_test();
  testing::CpuPlace place(&threads);
  testing::check_cross_entropy_case(place, {90, 500, 0, {}, true, true, 0}, DType::kFloat16);
}

}  // namespace
}  // namespace shardwise::kernels
