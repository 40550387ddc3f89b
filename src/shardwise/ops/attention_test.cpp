#include "shardwise/ops/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

#include "shardwise/device/launch_point.h"

namespace shardwise::ops {
namespace {

struct Counter : device::LaunchWaiter {
  int points = 0;
  void launch_point() override { ++points; }
};

// Collectives would go off late if one form of attention had none.
TEST(Attention, BackwardReachesOneLaunchPointInEveryForm) {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 8, .scale = 0.5};
  const Documents equal{.offsets = at::tensor({0, 5, 10}, at::kInt), .longest = 5};
  const Documents others{.offsets = at::tensor({0, 3, 10}, at::kInt), .longest = 7};
  const auto counter = std::make_shared<Counter>();
  device::set_launch_waiter(counter);
  for (const CausalMask& mask :
       {CausalMask{}, CausalMask{.window = 3}, CausalMask{.documents = equal},
        CausalMask{.documents = others}, CausalMask{.window = 2, .documents = others}}) {
    counter->points = 0;
    at::Tensor rows = at::randn({1, 10, 8 * 8}).requires_grad_();
    const at::Tensor attended = causal_attention(rows, shape, mask);
    EXPECT_EQ(counter->points, 0);
    attended.sum().backward();
    EXPECT_EQ(counter->points, 1);
    EXPECT_TRUE(rows.grad().defined());
  }
  device::set_launch_waiter({});
}

}  // namespace
}  // namespace shardwise::ops
