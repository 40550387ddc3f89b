// Activation functions on the CPU against their formulas.
#include "shardwise/kernels/activation.h"

#include <gtest/gtest.h>

#include "shardwise/kernels/activation_cases.h"

namespace shardwise::kernels {
namespace {

TEST(ActivationKernel, EqualsItsFormula) {
  testing::CpuPlace place;
  testing::check_activations(place);
}

TEST(ActivationKernel, EqualsItsFormulaOnThreads) {
  const ParallelFor threads = testing::threads_for_test();
  testing::CpuPlace place(&threads);
  testing::check_activation_case(place, {ActivationKind::kSilu, true, DType::kBFloat16, 101, 300},
                                 0);
}

}  // namespace
}  // namespace shardwise::kernels
