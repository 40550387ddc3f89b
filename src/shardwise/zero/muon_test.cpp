#include "shardwise/zero/muon.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace shardwise::zero {
namespace {

TEST(MuonTest, OwnersShareTheWork) {
  // From 8 down, each to the rank that has least: 8+3+2, 7+4+1, 6+5.
  const std::vector<double> costs = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(muon_owners(costs, 3), (std::vector<int>{1, 0, 0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(muon_owners({5}, 4), (std::vector<int>{0}));
  EXPECT_EQ(muon_owners({3, 3, 3}, 3), (std::vector<int>{0, 1, 2}));
}

// Coefficients whose iteration converges (a + b + c = 1), and steps enough.
optim::MuonGroup converging(bool gram) {
  optim::MuonGroup group;
  group.ns_steps = 12;
  group.ns_coefficients = {1.875, -1.25, 0.375};
  group.gram = gram;
  return group;
}

// The limit is U·Vᵀ of the singular value decomposition.
TEST(MuonTest, BothIterationsConvergeToTheOrthogonalFactor) {
  at::manual_seed(3);
  for (const auto& sizes : {std::vector<std::int64_t>{7, 12}, {12, 7}, {9, 9}, {3, 5, 8}}) {
    const at::Tensor x = at::randn(sizes);
    const auto [u, s, vh] = at::linalg_svd(x.to(at::kDouble), /*full_matrices=*/false);
    const at::Tensor limit = at::matmul(u, vh);
    const at::Tensor gram = orthogonalised(x, converging(true));
    EXPECT_EQ(gram.scalar_type(), at::kFloat);
    EXPECT_LT((gram - limit).abs().max().item<double>(), 1e-4);
    const at::Tensor standard = orthogonalised(x, converging(false));
    EXPECT_EQ(standard.scalar_type(), at::kBFloat16);
    EXPECT_LT((standard - limit).abs().max().item<double>(), 0.05);
  }
}

TEST(MuonTest, ZeroesStayZero) {
  for (const bool gram : {false, true}) {
    const at::Tensor still = orthogonalised(at::zeros({4, 6}), converging(gram));
    EXPECT_EQ(still.abs().max().item<float>(), 0.0F);
    EXPECT_EQ(orthogonalised(at::zeros({0, 6}), converging(gram)).numel(), 0);
  }
}

}  // namespace
}  // namespace shardwise::zero
