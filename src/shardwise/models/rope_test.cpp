#include "shardwise/models/rope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shardwise/ops/rope.h"

namespace shardwise::models {
namespace {

constexpr std::int64_t kHeadDim = 8;

ModelConfig config_with(RopeScaling scaling) {
  ModelConfig config;
  config.attention.head_dim = kHeadDim;
  config.max_positions = 32;
  config.attention.rope.scaling = scaling;
  config.attention.rope.theta = 1000;
  config.attention.rope.factor = 4;
  config.attention.rope.original_max_positions = 16;
  return config;
}

double frequency(const ModelConfig& config, std::int64_t sequence, int pair) {
  return Rope(config).frequencies(sequence)[pair].item<double>();
}

TEST(Rope, PlainFrequenciesAreAGeometricSeries) {
  const ModelConfig config = config_with(RopeScaling::kNone);
  for (int pair = 0; pair < kHeadDim / 2; ++pair) {
    const double expected = std::pow(1000.0, -2.0 * pair / kHeadDim);
    EXPECT_NEAR(frequency(config, 5, pair), expected, 1e-6 * expected);
    const double linear = frequency(config_with(RopeScaling::kLinear), 5, pair);
    EXPECT_NEAR(linear, expected / 4, 1e-6 * expected);
  }
}

// The base is chosen so that the slowest pair turns as if positions were squeezed into
// max_positions: factor × length / max − (factor − 1) times slower.
TEST(Rope, DynamicScalingSlowsTheLastPairByTheStretch) {
  const ModelConfig config = config_with(RopeScaling::kDynamic);
  const int last = kHeadDim / 2 - 1;
  const double plain = frequency(config, 32, last);
  EXPECT_NEAR(plain, std::pow(1000.0, -0.75), 1e-6 * plain);
  EXPECT_NEAR(frequency(config, 64, last), plain / (4 * 2 - 3), 1e-5 * plain);
  EXPECT_NEAR(frequency(config, 64, 0), 1, 1e-6);
}

TEST(Rope, Llama3KeepsShortWavesAndSlowsLongOnes) {
  const ModelConfig config = config_with(RopeScaling::kLlama3);
  const ModelConfig plain = config_with(RopeScaling::kNone);
  // Wave lengths 2π × 1000^(i/4): 6.3, 35, 199 and 1117 tokens; bounds 16 / 4 and 16 / 1.
  const double share = (16 / 6.283185307 - 1) / (4 - 1);
  EXPECT_NEAR(frequency(config, 5, 0), (1 - share) / 4 + share, 1e-6);
  for (int pair = 1; pair < 4; ++pair) {
    EXPECT_NEAR(frequency(config, 5, pair), frequency(plain, 5, pair) / 4, 1e-7);
  }
}

// What rotary embeddings are for: products of rotated heads depend on distances alone.
TEST(Rope, ProductsDependOnDistance) {
  const Rope rope(config_with(RopeScaling::kNone));
  const RopeTables tables = rope.tables(20, 20, at::kCPU);
  const auto turned = [&](const at::Tensor& head) {
    return ops::rope(head.expand({20, kHeadDim}), tables.cosines, tables.sines, std::nullopt,
                     /*heads=*/1, kHeadDim, /*interleaved=*/false);
  };
  const at::Tensor q = turned(at::sin(at::arange(kHeadDim, at::kFloat)));
  const at::Tensor k = turned(at::cos(at::arange(kHeadDim, at::kFloat)));
  const at::Tensor products = q.matmul(k.t());
  for (int distance = 0; distance < 20; ++distance) {
    const at::Tensor diagonal = at::diagonal(products, -distance);
    EXPECT_TRUE(at::allclose(diagonal, diagonal[0].expand_as(diagonal), 1e-4, 1e-5));
  }
}

TEST(Rope, TablesFollowLength) {
  const Rope rope(config_with(RopeScaling::kNone));
  const RopeTables first = rope.tables(4, 4, at::kCPU);
  EXPECT_TRUE(first.cosines.is_same(rope.tables(4, 4, at::kCPU).cosines));
  EXPECT_EQ(rope.tables(6, 6, at::kCPU).cosines.size(0), 6);
  EXPECT_TRUE(at::equal(rope.tables(4, 4, at::kCPU).sines, first.sines));
}

}  // namespace
}  // namespace shardwise::models
