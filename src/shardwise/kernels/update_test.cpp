// The update rules against the textbook formulas in double, at every CPU level, dtype and awkward
// length.
#include "shardwise/kernels/update.h"

#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "shardwise/kernels/dispatch.h"
#include "shardwise/kernels/test_reference.h"

namespace shardwise::kernels {
namespace {

using testing::Array;
using testing::TestShard;

constexpr int kInactive = 6;  // parameter that must not move

// How the parameter is stored beside the master.
struct Case {
  DType gradient;
  DType parameter;
  bool shares_master;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (DType gradient : testing::all_dtypes()) {
    for (DType parameter : testing::all_dtypes()) {
      cases.push_back({gradient, parameter, false});
    }
    cases.push_back({gradient, DType::kFloat32, true});
  }
  return cases;
}

Place place_at(CpuLevel level) {
  Place place;
  place.cpu_level = level;
  return place;
}

std::vector<AdamGroup> adam_groups() {
  AdamGroup adamw{1e-2, 0.9, 0.99, 1e-8, 0.1, true, true};
  AdamGroup adam{3e-3, 0.8, 0.999, 1e-6, 0.05, false, true};
  AdamGroup uncorrected{1e-3, 0.0, 0.95, 1e-4, 0.0, true, false};
  return {adamw, adam, uncorrected};
}

std::vector<SgdGroup> sgd_groups() {
  SgdGroup plain{0.1, 0.0, 0.0, 0.01, false};
  SgdGroup momentum{0.05, 0.9, 0.2, 0.0, false};
  SgdGroup nesterov{0.02, 0.8, 0.0, 0.1, true};
  return {plain, momentum, nesterov};
}

std::vector<LionGroup> lion_groups() {
  return {LionGroup{1e-2, 0.9, 0.99, 0.1}, LionGroup{3e-3, 0.8, 0.95, 0.0},
          LionGroup{1e-3, 0.0, 0.5, 0.3}};
}

std::vector<AdagradGroup> adagrad_groups() {
  return {AdagradGroup{1e-2, 0.0, 1e-10, 0.0}, AdagradGroup{0.1, 0.05, 1e-4, 0.01},
          AdagradGroup{3e-3, 0.5, 1e-6, 0.1}};
}

// Own step counts; parameters 0, 3, 6, … are in their first step.
std::vector<std::int32_t> steps_of(std::size_t parameters) {
  std::vector<std::int32_t> steps(parameters);
  for (std::size_t i = 0; i < parameters; ++i) {
    steps[i] = i % 4 == 0 ? 1 : static_cast<std::int32_t>(3 * i + 1);
  }
  return steps;
}

constexpr double kUlp = 0x1p-23;

struct Expected {
  double p, m, v;
  double scale_m, scale_v, scale_p;  // magnitudes whose rounding errors enter
};

// Kingma & Ba, Algorithm 1; Loshchilov & Hutter, Algorithm 2.
Expected adam_reference(const AdamGroup& h, int t, double multiplier, double p, double m, double v,
                        double g) {
  const double size = std::fabs(g * multiplier) + std::fabs(h.weight_decay * p);
  g *= multiplier;
  if (h.decoupled_decay) {
    p -= h.lr * h.weight_decay * p;
  } else {
    g += h.weight_decay * p;
  }
  Expected e;
  e.m = h.beta1 * m + (1 - h.beta1) * g;
  e.v = h.beta2 * v + (1 - h.beta2) * g * g;
  const double m_hat = h.bias_correction ? e.m / (1 - std::pow(h.beta1, t)) : e.m;
  const double v_hat = h.bias_correction ? e.v / (1 - std::pow(h.beta2, t)) : e.v;
  const double step = h.lr / (std::sqrt(v_hat) + h.eps);
  e.p = p - step * m_hat;
  e.scale_m = std::fabs(m) + size;
  e.scale_v = e.v;
  e.scale_p = std::fabs(p) + step * e.scale_m * std::fabs(m_hat / (e.m == 0 ? 1 : e.m));
  return e;
}

Expected sgd_reference(const SgdGroup& h, int t, double multiplier, double p, double b, double g) {
  const double size = std::fabs(g * multiplier) + std::fabs(h.weight_decay * p);
  g = g * multiplier + h.weight_decay * p;
  Expected e = {};
  e.m = b;
  double direction = g;
  if (h.momentum != 0) {
    e.m = t == 1 ? g : h.momentum * b + (1 - h.dampening) * g;
    direction = h.nesterov ? g + h.momentum * e.m : e.m;
  }
  e.p = p - h.lr * direction;
  e.scale_m = std::fabs(b) + size;
  e.scale_p = std::fabs(p) + h.lr * (std::fabs(direction) + e.scale_m);
  return e;
}

// Chen et al., Algorithm 2. `direction` near 0 has no certain sign.
Expected lion_reference(const LionGroup& h, double multiplier, double p, double m, double g) {
  g *= multiplier;
  const double direction = h.beta1 * m + (1 - h.beta1) * g;
  Expected e = {};
  e.p = p * (1 - h.lr * h.weight_decay) - h.lr * ((direction > 0) - (direction < 0));
  e.m = h.beta2 * m + (1 - h.beta2) * g;
  e.scale_m = std::fabs(m) + std::fabs(g);
  e.scale_p = std::fabs(p) + h.lr;
  if (std::fabs(direction) < 1e-6 * e.scale_m) {
    e.scale_p += h.lr / kUlp;
  }
  return e;
}

// torch.optim.Adagrad's documentation.
Expected adagrad_reference(const AdagradGroup& h, int t, double multiplier, double p, double sum,
                           double g) {
  g = g * multiplier + h.weight_decay * p;
  Expected e = {};
  e.m = sum + g * g;
  const double step = h.lr / (1 + (t - 1) * h.lr_decay) / (std::sqrt(e.m) + h.eps);
  e.p = p - step * g;
  e.scale_m = e.m;
  e.scale_p = std::fabs(p) + step * (std::fabs(g) + std::fabs(h.weight_decay * p));
  return e;
}

// Everything that is not an active chunk kept its bits; the rest is near the reference.
template <typename Reference>
void expect_updated(const TestShard& before, const TestShard& after, const Reference& reference) {
  const std::vector<int> owner = before.owners();
  for (std::size_t i = 0; i < owner.size(); ++i) {
    if (owner[i] < 0 || owner[i] == kInactive) {
      ASSERT_EQ(before.master.get(i), after.master.get(i)) << "element " << i;
      ASSERT_EQ(before.state0.get(i), after.state0.get(i)) << "element " << i;
      ASSERT_EQ(before.state1.get(i), after.state1.get(i)) << "element " << i;
      ASSERT_EQ(before.parameter.get(i), after.parameter.get(i)) << "element " << i;
      continue;
    }
    const Expected e = reference(owner[i], i);
    ASSERT_NEAR(after.master.get(i), e.p, 3 * kUlp * e.scale_p) << "element " << i;
    ASSERT_NEAR(after.state0.get(i), e.m, 2 * kUlp * e.scale_m) << "element " << i;
    ASSERT_NEAR(after.state1.get(i), e.v, 3 * kUlp * e.scale_v) << "element " << i;
    if (!before.parameter_is_master) {
      Array copy = after.parameter;
      copy.set(i, static_cast<float>(after.master.get(i)));
      ASSERT_EQ(copy.get(i), after.parameter.get(i)) << "element " << i;
    }
  }
}

void expect_same_bits(const TestShard& a, const TestShard& b) {
  EXPECT_TRUE(a.master == b.master);
  EXPECT_TRUE(a.state0 == b.state0);
  EXPECT_TRUE(a.state1 == b.state1);
  EXPECT_TRUE(a.parameter == b.parameter);
}

// Updates a shard by the rule of the groups.
template <typename Group>
void run(const Place& place, TestShard& shard, const StepDecision& decision,
         const std::vector<Group>& groups) {
  const ShardPointers pointers = shard.pointers();
  const ChunkTable table{shard.chunks.data(), static_cast<std::int64_t>(shard.chunks.size()),
                         &pointers, 1};
  std::vector<std::uint8_t> active(shard.chunks.size(), 1);
  active[kInactive] = 0;
  update(place, table, groups, &decision, active.data(), steps_of(shard.chunks.size()).data());
}

class UpdateAtLevel : public ::testing::TestWithParam<CpuLevel> {};

TEST_P(UpdateAtLevel, AdamFollowsTheFormulas) {
  const StepDecision decision{0.37F, 1};
  for (const Case& c : all_cases()) {
    const TestShard before(c.gradient, c.parameter, c.shares_master, 3);
    const std::vector<std::int32_t> steps = steps_of(before.chunks.size());
    TestShard after = before;
    run(place_at(GetParam()), after, decision, adam_groups());
    expect_updated(before, after, [&](int chunk, std::size_t i) {
      return adam_reference(adam_groups()[before.chunks[chunk].group], steps[chunk],
                            decision.gradient_multiplier, before.master.get(i),
                            before.state0.get(i), before.state1.get(i), before.gradient.get(i));
    });
  }
}

TEST_P(UpdateAtLevel, SgdFollowsTheFormulas) {
  const StepDecision decision{0.5F, 1};
  for (const Case& c : all_cases()) {
    const TestShard before(c.gradient, c.parameter, c.shares_master, 3);
    const std::vector<std::int32_t> steps = steps_of(before.chunks.size());
    TestShard after = before;
    run(place_at(GetParam()), after, decision, sgd_groups());
    expect_updated(before, after, [&](int chunk, std::size_t i) {
      Expected e = sgd_reference(sgd_groups()[before.chunks[chunk].group], steps[chunk],
                                 decision.gradient_multiplier, before.master.get(i),
                                 before.state0.get(i), before.gradient.get(i));
      e.v = before.state1.get(i);
      return e;
    });
  }
}

TEST_P(UpdateAtLevel, LionFollowsTheFormulas) {
  const StepDecision decision{0.37F, 1};
  for (const Case& c : all_cases()) {
    const TestShard before(c.gradient, c.parameter, c.shares_master, 3);
    TestShard after = before;
    run(place_at(GetParam()), after, decision, lion_groups());
    expect_updated(before, after, [&](int chunk, std::size_t i) {
      Expected e =
          lion_reference(lion_groups()[before.chunks[chunk].group], decision.gradient_multiplier,
                         before.master.get(i), before.state0.get(i), before.gradient.get(i));
      e.v = before.state1.get(i);
      return e;
    });
  }
}

TEST_P(UpdateAtLevel, LionTakesTheSignOfZeroAsZeroAndOfNanAsNan) {
  std::vector<float> p = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F, 8.0F, 9.0F};
  std::vector<float> m(9, 0.0F);
  const std::vector<float> g = {0.0F,      -0.0F,      1e-30F, -1e-30F, std::nanf(""),
                                HUGE_VALF, -HUGE_VALF, 0.0F,   5.0F};
  ShardPointers pointers;
  pointers.master = p.data();
  pointers.state[0] = m.data();
  pointers.gradient = g.data();
  const Chunk chunk{0, 9, 0, 0, 0};
  const StepDecision decision;
  const std::int32_t step = 1;
  update<LionGroup>(place_at(GetParam()), ChunkTable{&chunk, 1, &pointers, 1},
                    {LionGroup{0.5, 0.9, 0.99, 0.0}}, &decision, nullptr, &step);
  const std::vector<float> expected = {1.0F, 2.0F, 2.5F, 4.5F, 0.0F, 5.5F, 7.5F, 8.0F, 8.5F};
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (i == 4) {
      EXPECT_TRUE(std::isnan(p[i]));
    } else {
      EXPECT_EQ(p[i], expected[i]) << "element " << i;
    }
  }
}

TEST_P(UpdateAtLevel, AdagradFollowsTheFormulas) {
  const StepDecision decision{0.5F, 1};
  for (const Case& c : all_cases()) {
    TestShard before(c.gradient, c.parameter, c.shares_master, 3);
    before.state0 = before.state1;  // sums are positive
    const std::vector<std::int32_t> steps = steps_of(before.chunks.size());
    TestShard after = before;
    run(place_at(GetParam()), after, decision, adagrad_groups());
    expect_updated(before, after, [&](int chunk, std::size_t i) {
      Expected e = adagrad_reference(adagrad_groups()[before.chunks[chunk].group], steps[chunk],
                                     decision.gradient_multiplier, before.master.get(i),
                                     before.state0.get(i), before.gradient.get(i));
      e.v = before.state1.get(i);
      return e;
    });
  }
}

TEST_P(UpdateAtLevel, ChunksWithoutAGroupDoNotMove) {
  const TestShard before(DType::kFloat32, DType::kBFloat16, false, 1);
  TestShard after = before;
  for (Chunk& chunk : after.chunks) {
    chunk.group = -1;
  }
  run(place_at(GetParam()), after, StepDecision{}, adam_groups());
  run(place_at(GetParam()), after, StepDecision{}, lion_groups());
  expect_same_bits(before, after);
}

// Three steps of torch 2.11 (torch.optim, foreach=False) from kStart with kGradients.
constexpr float kStart[6] = {0.5F, -1.25F, 3.0F, 1e-3F, -0.75F, 2.0F};
constexpr float kGradients[3][6] = {{0.1F, -0.2F, 0.3F, -1e-4F, 5.0F, 0.0F},
                                    {-0.3F, 0.05F, 0.2F, 2e-4F, -4.0F, 1e-6F},
                                    {0.25F, 0.125F, -0.7F, 3e-3F, 0.5F, -2.0F}};

// The gradients are stored times 8 and the multiplier is 1/8, as with a loss scale.
template <typename Group>
void expect_torch(CpuLevel level, const Group& group, const std::vector<float>& expected) {
  std::vector<float> p(kStart, kStart + 6);
  std::vector<float> m(6);
  std::vector<float> v(6);
  std::vector<float> gradient(6);
  ShardPointers pointers;
  pointers.master = p.data();
  pointers.parameter = p.data();
  pointers.state[0] = m.data();
  pointers.state[1] = v.data();
  pointers.gradient = gradient.data();
  const Chunk chunk{0, 6, 0, 0, 0};
  const StepDecision decision{0.125F, 1};
  for (std::int32_t step = 1; step <= 3; ++step) {
    for (int i = 0; i < 6; ++i) {
      gradient[i] = 8.0F * kGradients[step - 1][i];
    }
    update(place_at(level), ChunkTable{&chunk, 1, &pointers, 1}, std::vector<Group>{group},
           &decision, nullptr, &step);
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(p[i], expected[i], 2 * kUlp * (std::fabs(expected[i]) + 0.01)) << "element " << i;
  }
}

TEST_P(UpdateAtLevel, ThreeStepsAsTorch) {
  expect_torch(
      GetParam(), AdamGroup{1e-2, 0.9, 0.99, 1e-8, 0.1, true, true},
      {0.492483944F, -1.23178697F, 2.97356796F, 0.00077255629F, -0.759261489F, 1.99305141F});
  expect_torch(
      GetParam(), AdamGroup{3e-3, 0.8, 0.999, 1e-6, 0.05, false, true},
      {0.497663349F, -1.24409723F, 2.99401736F, -0.000458512222F, -0.753110707F, 1.99596226F});
  expect_torch(
      GetParam(), AdamGroup{3e-3, 0.3, 0.9, 1e-4, 0.0, false, true},
      {0.498189896F, -1.24877131F, 2.99716377F, -0.00242292881F, -0.751568019F, 2.00352979F});
  expect_torch(
      GetParam(), SgdGroup{0.1, 0.0, 0.0, 0.01, false},
      {0.493491471F, -1.24378872F, 3.01108885F, 0.000687003019F, -0.897152662F, 2.19400597F});
  expect_torch(
      GetParam(), SgdGroup{0.05, 0.9, 0.2, 0.0, false},
      {0.499249995F, -1.23170006F, 2.97214985F, 0.000878350053F, -1.14350009F, 2.07999992F});
  expect_torch(
      GetParam(), SgdGroup{0.02, 0.8, 0.0, 0.1, true},
      {0.492564231F, -1.22727561F, 2.95485115F, 0.00087379897F, -0.856012046F, 2.04332805F});
}

TEST_P(UpdateAtLevel, FirstMomentumStepIgnoresWhatTheBufferHeld) {
  TestShard shard(DType::kFloat32, DType::kFloat32, true, 1);
  shard.state0 = Array(DType::kFloat32, std::vector<float>(shard.master.size(), std::nanf("")));
  const TestShard before = shard;
  const ShardPointers pointers = shard.pointers();
  const ChunkTable table{shard.chunks.data(), static_cast<std::int64_t>(shard.chunks.size()),
                         &pointers, 1};
  const StepDecision decision;
  const std::vector<std::int32_t> first(shard.chunks.size(), 1);
  const SgdGroup group{0.25, 0.9, 0.5, 0.0, false};
  update<SgdGroup>(place_at(GetParam()), table, {group}, &decision, nullptr, first.data());
  const std::vector<int> owner = shard.owners();
  for (std::size_t i = 0; i < owner.size(); ++i) {
    if (owner[i] >= 0) {
      ASSERT_EQ(shard.state0.get(i), before.gradient.get(i));
      ASSERT_NEAR(shard.master.get(i), before.master.get(i) - 0.25 * before.gradient.get(i), kUlp);
    }
  }
}

TEST_P(UpdateAtLevel, WithoutMomentumTheBufferMayBeNull) {
  TestShard shard(DType::kBFloat16, DType::kBFloat16, false, 1);
  const TestShard before = shard;
  ShardPointers pointers = shard.pointers();
  pointers.state[0] = nullptr;
  pointers.state[1] = nullptr;
  const ChunkTable table{shard.chunks.data(), static_cast<std::int64_t>(shard.chunks.size()),
                         &pointers, 1};
  const StepDecision decision;
  const std::vector<std::int32_t> steps(shard.chunks.size(), 2);
  update<SgdGroup>(place_at(GetParam()), table, {SgdGroup{1.0}}, &decision, nullptr, steps.data());
  EXPECT_NEAR(shard.master.get(3), before.master.get(3) - before.gradient.get(3), kUlp);
}

TEST_P(UpdateAtLevel, SkippedStepWritesNothing) {
  const TestShard before(DType::kFloat16, DType::kFloat16, false, 3);
  TestShard after = before;
  run(place_at(GetParam()), after, StepDecision{1.0F, 0}, adam_groups());
  expect_same_bits(before, after);
  run(place_at(GetParam()), after, StepDecision{1.0F, 0}, sgd_groups());
  expect_same_bits(before, after);
}

TEST_P(UpdateAtLevel, SameBitsAsTheScalarLevelAndOnThreads) {
  const ParallelFor threads = testing::threads_for_test();
  for (const Case& c : all_cases()) {
    TestShard scalar(c.gradient, c.parameter, c.shares_master, 3);
    TestShard level = scalar;
    Place place = place_at(GetParam());
    place.parallel_for = &threads;
    for (float multiplier : {1.0F, 0.3F, 1e-3F}) {
      const StepDecision decision{multiplier, 1};
      run(place_at(CpuLevel::kScalar), scalar, decision, adam_groups());
      run(place, level, decision, adam_groups());
      run(place_at(CpuLevel::kScalar), scalar, decision, sgd_groups());
      run(place, level, decision, sgd_groups());
      run(place_at(CpuLevel::kScalar), scalar, decision, lion_groups());
      run(place, level, decision, lion_groups());
    }
    expect_same_bits(scalar, level);
    scalar.state0 = level.state0 = scalar.state1;  // sums are positive
    run(place_at(CpuLevel::kScalar), scalar, StepDecision{}, adagrad_groups());
    run(place, level, StepDecision{}, adagrad_groups());
    expect_same_bits(scalar, level);
  }
}

// What the formulas say of fp32, on the same numbers, rounded once.
template <typename Group>
void expect_rounded(const Place& place, const testing::Narrow& c,
                    const std::vector<Group>& groups) {
  TestShard narrow(c.gradient, c.master, true, static_cast<int>(groups.size()));
  narrow.state0 = narrow.state1;  // sums are positive
  narrow.narrow(c.master, c.state);
  TestShard wide = narrow;
  wide.master = narrow.master.in(DType::kFloat32);
  wide.state0 = narrow.state0.in(DType::kFloat32);
  wide.state1 = narrow.state1.in(DType::kFloat32);
  const TestShard before = narrow;
  run(place, narrow, StepDecision{0.37F, 1}, groups);
  run(place_at(CpuLevel::kScalar), wide, StepDecision{0.37F, 1}, groups);
  wide.master = wide.master.in(c.master);
  wide.state0 = wide.state0.in(c.state);
  wide.state1 = wide.state1.in(c.state);
  expect_same_bits(narrow, wide);
  EXPECT_FALSE(narrow.master == before.master);
}

TEST_P(UpdateAtLevel, SixteenBitMastersAndStatesAreRoundedOnce) {
  const ParallelFor threads = testing::threads_for_test();
  Place place = place_at(GetParam());
  place.parallel_for = &threads;
  for (const testing::Narrow& c : testing::all_narrow()) {
    expect_rounded(place, c, adam_groups());
    expect_rounded(place, c, sgd_groups());
    expect_rounded(place, c, lion_groups());
    expect_rounded(place, c, adagrad_groups());
  }
}

TEST_P(UpdateAtLevel, SumOfSquares) {
  for (DType dtype : testing::all_dtypes()) {
    TestShard shard(dtype, DType::kFloat32, true, 1);
    const ShardPointers pointers = shard.pointers();
    const ChunkTable table{shard.chunks.data(), static_cast<std::int64_t>(shard.chunks.size()),
                           &pointers, 1};
    std::vector<double> partials(shard.chunks.size(), -1.0);
    std::vector<double> scalar(shard.chunks.size(), -1.0);
    sum_of_squares(place_at(GetParam()), table, partials.data());
    sum_of_squares(place_at(CpuLevel::kScalar), table, scalar.data());
    EXPECT_EQ(partials, scalar);
    for (std::size_t c = 0; c < shard.chunks.size(); ++c) {
      long double expected = 0;
      for (int i = 0; i < shard.chunks[c].length; ++i) {
        const long double g = shard.gradient.get(shard.chunks[c].offset + i);
        expected += g * g;
      }
      EXPECT_NEAR(partials[c], static_cast<double>(expected),
                  1e-14 * static_cast<double>(expected));
    }
  }
}

TEST_P(UpdateAtLevel, NonFiniteGradientsReachTheirPartialOnly) {
  for (DType dtype : testing::all_dtypes()) {
    for (float poison : {std::nanf(""), std::numeric_limits<float>::infinity(), -HUGE_VALF}) {
      TestShard shard(dtype, DType::kFloat32, true, 1);
      shard.gradient.set(shard.chunks[5].offset + 32, poison);  // last element
      shard.gradient.set(shard.chunks[5].offset - 1, poison);   // gap
      const ShardPointers pointers = shard.pointers();
      const ChunkTable table{shard.chunks.data(), static_cast<std::int64_t>(shard.chunks.size()),
                             &pointers, 1};
      std::vector<double> partials(shard.chunks.size());
      sum_of_squares(place_at(GetParam()), table, partials.data());
      for (std::size_t c = 0; c < partials.size(); ++c) {
        EXPECT_EQ(std::isfinite(partials[c]), c != 5) << "chunk " << c;
      }
    }
  }
}

TEST_P(UpdateAtLevel, LargestFiniteGradientsStayFinite) {
  std::vector<float> gradient(40, std::numeric_limits<float>::max());
  ShardPointers pointers;
  pointers.gradient = gradient.data();
  const Chunk chunk{0, 40, 0, 0, 0};
  double partial = 0;
  sum_of_squares(place_at(GetParam()), ChunkTable{&chunk, 1, &pointers, 1}, &partial);
  EXPECT_TRUE(std::isfinite(partial));
}

INSTANTIATE_TEST_SUITE_P(Levels, UpdateAtLevel, ::testing::ValuesIn(available_cpu_levels()),
                         [](const auto& tested) { return cpu_level_name(tested.param); });

TEST(Update, EmptyTableDoesNothing) {
  const StepDecision decision;
  update<AdamGroup>(Place{}, ChunkTable{}, adam_groups(), &decision, nullptr, nullptr);
  update<SgdGroup>(Place{}, ChunkTable{}, sgd_groups(), &decision, nullptr, nullptr);
  sum_of_squares(Place{}, ChunkTable{}, nullptr);
}

TEST(Update, UnknownGroupIsOurBug) {
  TestShard shard(DType::kFloat32, DType::kFloat32, true, 4);
  EXPECT_THROW(run(Place{}, shard, StepDecision{}, adam_groups()), InternalError);
}

TEST(Update, StepCountBelowOneIsOurBug) {
  TestShard shard(DType::kFloat32, DType::kFloat32, true, 1);
  const ShardPointers pointers = shard.pointers();
  const ChunkTable table{shard.chunks.data(), static_cast<std::int64_t>(shard.chunks.size()),
                         &pointers, 1};
  std::vector<std::int32_t> steps(shard.chunks.size(), 1);
  steps[kInactive] = 0;
  std::vector<std::uint8_t> active(shard.chunks.size(), 1);
  const StepDecision decision;
  EXPECT_THROW(
      update<AdamGroup>(Place{}, table, adam_groups(), &decision, active.data(), steps.data()),
      InternalError);
  active[kInactive] = 0;
  update<AdamGroup>(Place{}, table, adam_groups(), &decision, active.data(), steps.data());
}

TEST(Update, DtypesThatNoUpdateServesAreOurBug) {
  const auto refused = [](const std::function<void(ShardPointers&)>& change) {
    TestShard shard(DType::kBFloat16, DType::kBFloat16, false, 1);
    ShardPointers pointers = shard.pointers();
    change(pointers);
    const Chunk chunk{0, 4, 0, 0, 0};
    const StepDecision decision;
    const std::int32_t step = 1;
    EXPECT_THROW(update<LionGroup>(Place{}, ChunkTable{&chunk, 1, &pointers, 1}, {LionGroup{}},
                                   &decision, nullptr, &step),
                 InternalError);
  };
  refused([](ShardPointers& p) { p.state_dtype = DType::kBFloat16; });   // of a fp32 master
  refused([](ShardPointers& p) { p.master_dtype = DType::kBFloat16; });  // with a copy
  refused([](ShardPointers& p) {
    p.master_dtype = DType::kFloat16;
    p.parameter = nullptr;  // gradient of another 16-bit dtype
  });
}

TEST(Update, UnavailableLevelIsRefused) {
  if (best_cpu_level() == CpuLevel::kAvx512) {
    GTEST_SKIP() << "this machine has every level";
  }
  TestShard shard(DType::kFloat32, DType::kFloat32, true, 3);
  EXPECT_THROW(run(place_at(CpuLevel::kAvx512), shard, StepDecision{}, adam_groups()),
               InternalError);
}

}  // namespace
}  // namespace shardwise::kernels
