// Rotation in place against the one that makes a new tensor; the latter is held against plain
// PyTorch by tests/test_ops.py.
#include "shardwise/ops/rope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::ops {
namespace {

struct Inputs {
  at::Tensor x = at::randn({2, 5, 6});
  at::Tensor weight = at::randn({32, 6}).requires_grad_();
  at::Tensor cosines = at::rand({7, 4});
  at::Tensor sines = at::rand({7, 4});

  at::Tensor product() const { return at::linear(x, weight); }
};

at::Tensor gradient(const at::Tensor& rows, const Inputs& in) {
  // As a layer does: pieces of the rows go different ways.
  const at::Tensor loss = at::sum(rows.narrow(-1, 0, 16) * rows.narrow(-1, 16, 16));
  return torch::autograd::grad({loss}, {in.weight})[0];
}

TEST(RopeInPlace, EqualsTheOtherRotation) {
  const Inputs in;
  const at::Tensor apart =
      rope(in.product(), in.cosines, in.sines, std::nullopt, 3, 8, /*interleaved=*/false);
  const at::Tensor rows = in.product();
  const at::Tensor same =
      rope_in_place(rows, in.cosines, in.sines, std::nullopt, 3, 8, /*interleaved=*/false);
  EXPECT_TRUE(same.is_same(rows));
  EXPECT_TRUE(at::equal(same, apart));
  EXPECT_TRUE(at::equal(gradient(same, in), gradient(apart, in)));
}

TEST(RopeInPlace, LeavesAGradientAloneThatOthersHold) {
  const Inputs in;
  const at::Tensor rows = rope_in_place(in.product(), in.cosines, in.sines, std::nullopt, 3, 8,
                                        /*interleaved=*/false);
  const at::Tensor given = at::randn({2, 5, 32});
  const at::Tensor before = given.clone();
  torch::autograd::grad({rows}, {in.weight}, {given});
  EXPECT_TRUE(at::equal(given, before));
}

TEST(RopeInPlace, RowsThatSomeoneSavedAreRefusedInBackward) {
  const Inputs in;
  const at::Tensor rows = in.product();
  const at::Tensor loss = at::sum(at::square(rows));  // saves the rows
  rope_in_place(rows, in.cosines, in.sines, std::nullopt, 3, 8, /*interleaved=*/false);
  EXPECT_THROW(torch::autograd::grad({loss}, {in.weight}), c10::Error);
}

}  // namespace
}  // namespace shardwise::ops
