// fp8 on the CPU against the formats' definition.
#include "shardwise/kernels/float8.h"

#include <gtest/gtest.h>

#include "shardwise/kernels/float8_cases.h"

namespace shardwise::kernels {
namespace {

TEST(Float8Kernel, EqualsItsDefinition) {
  testing::CpuPlace place;
  testing::check_float8(place);
}

TEST(Float8Kernel, EqualsItsDefinitionOnThreads) {
  const ParallelFor threads = testing::threads_for_test();
  testing::CpuPlace place(&threads);
  for (bool rowwise : {false, true}) {
    const Float8Shape shape{.rows = 300, .columns = 190, .row_stride = 200, .rowwise = rowwise};
    testing::check_float8_case(place, {.shape = shape, .padding = 4});
  }
}

}  // namespace
}  // namespace shardwise::kernels
