// The end-of-step decision against hand-made records and an independent loss-scale simulation.
#include "shardwise/kernels/boundary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace shardwise::kernels {
namespace {

constexpr std::int64_t kParameters = 5;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What one rank brings.
struct Rank {
  std::vector<double> partials;
  std::vector<std::uint8_t> written;
  std::uint64_t hash = 42;
  double weight = 0.0;
};

struct Outcome {
  BoundaryResult result;
  StepDecision decision;
  LossScaleState state;
  std::vector<std::uint8_t> active = std::vector<std::uint8_t>(kParameters, 9);
  std::vector<std::int32_t> step = {0, 1, 2, 3, 4};
};

// Chunk i of every rank belongs to parameter i + 1.
Outcome finish(const std::vector<Rank>& ranks, const BoundaryRule& rule,
               LossScaleState state = {}) {
  const std::int64_t stride = boundary_record_bytes(kParameters);
  std::vector<std::uint8_t> records(stride * ranks.size(), 0xFF);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<Chunk> chunks(ranks[rank].partials.size());
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      chunks[i].parameter = static_cast<std::int32_t>(i + 1);
    }
    const ChunkTable table{chunks.data(), static_cast<std::int64_t>(chunks.size()), nullptr, 0};
    const std::uint8_t* written =
        ranks[rank].written.empty() ? nullptr : ranks[rank].written.data();
    fill_boundary_record(Place{}, table, ranks[rank].partials.data(),
                         {.order_hash = ranks[rank].hash,
                          .weight = &ranks[rank].weight,
                          .written = written,
                          .parameters = kParameters},
                         records.data() + rank * stride);
  }
  Outcome o;
  o.state = state;
  finish_boundary(Place{}, records.data(), static_cast<int>(ranks.size()), kParameters, rule,
                  &o.state, o.active.data(), o.step.data(), &o.decision, &o.result);
  return o;
}

TEST(BoundaryRecord, IsHeaderFlagsAndZeroPadding) {
  static_assert(sizeof(BoundaryHeader) == 32);
  EXPECT_EQ(boundary_record_bytes(0), 32);
  EXPECT_EQ(boundary_record_bytes(16), 48);
  EXPECT_EQ(boundary_record_bytes(17), 64);
  const Chunk chunks[3] = {{0, 1, 0, 0, 4}, {0, 1, 0, 0, 2}, {0, 1, 0, 0, 1}};
  const double partials[3] = {1.0, HUGE_VAL, kNan};
  const std::uint8_t written[3] = {0, 7, 1};
  std::vector<std::uint8_t> record(48, 0xEE);
  fill_boundary_record(Place{}, ChunkTable{chunks, 3, nullptr, 0}, partials,
                       {.order_hash = 77, .written = written, .parameters = 3}, record.data());
  BoundaryHeader header;
  std::memcpy(&header, record.data(), sizeof(header));
  EXPECT_EQ(header.order_hash, 77U);
  EXPECT_EQ(header.non_finite, 1U);
  EXPECT_EQ(header.bad_parameter, 2);
  EXPECT_FALSE(std::isfinite(header.sum_of_squares));
  EXPECT_EQ(std::vector<std::uint8_t>(record.begin() + 32, record.begin() + 40),
            (std::vector<std::uint8_t>{0, 1, 1, 0, 0, 0, 0, 0}));
}

TEST(Boundary, DividesByTheWeightOfAllRanks) {
  BoundaryRule rule;
  rule.gradient_factor = 2.0;
  rule.divide_by_weight = true;
  LossScaleState state;
  state.scale = 8.0F;
  // √(9 + 16) = 5, · 2 / (8 · (3 + 1)) = 5 / 16
  Outcome o = finish({{{9.0}, {}, 42, 3.0}, {{16.0}, {}, 42, 1.0}}, rule, state);
  EXPECT_DOUBLE_EQ(o.result.norm, 5.0 / 16);
  EXPECT_FLOAT_EQ(o.decision.gradient_multiplier, 1.0F / 16);
  o = finish({{{0.0}, {}}, {{0.0}, {}}}, rule, state);  // no rank had a token
  EXPECT_EQ(o.result.norm, 0.0);
  EXPECT_EQ(o.decision.gradient_multiplier, 0.0F);
}

TEST(Boundary, NormClippingAndMultiplier) {
  BoundaryRule rule;
  rule.gradient_factor = 0.25;
  LossScaleState state;
  state.scale = 8.0F;
  // √(9 + 16) = 5; unscaled by 8 and averaged by 4: 0.15625
  Outcome o = finish({{{4.0, 5.0}, {}}, {{16.0}, {}}}, rule, state);
  EXPECT_DOUBLE_EQ(o.result.norm, 5.0 / 32);
  EXPECT_DOUBLE_EQ(o.result.norm_clipped, 5.0 / 32);
  EXPECT_FLOAT_EQ(o.decision.gradient_multiplier, 1.0F / 32);
  EXPECT_EQ(o.decision.apply, 1);
  EXPECT_EQ(o.result.applied, 1);
  EXPECT_EQ(o.result.loss_scale, 8.0F);
  EXPECT_EQ(o.result.next_loss_scale, 8.0F);
  EXPECT_EQ(o.result.bad_rank, -1);

  rule.clip = 0.1;
  o = finish({{{4.0, 5.0}, {}}, {{16.0}, {}}}, rule, state);
  const double coefficient = 0.1 / (5.0 / 32 + 1e-6);
  EXPECT_DOUBLE_EQ(o.result.norm, 5.0 / 32);
  EXPECT_DOUBLE_EQ(o.result.norm_clipped, 5.0 / 32 * coefficient);
  EXPECT_FLOAT_EQ(o.decision.gradient_multiplier, static_cast<float>(coefficient / 32));

  rule.clip = 1.0;  // above the norm: nothing is clipped
  o = finish({{{4.0, 5.0}, {}}, {{16.0}, {}}}, rule, state);
  EXPECT_FLOAT_EQ(o.decision.gradient_multiplier, 1.0F / 32);
}

TEST(Boundary, ReplicatedGradientCountsOnce) {
  BoundaryRule rule;
  rule.norm_ranks = 1;
  const Outcome o = finish({{{9.0}, {}}, {{9.0}, {}}, {{9.0}, {}}}, rule);
  EXPECT_DOUBLE_EQ(o.result.norm, 3.0);
}

TEST(Boundary, ActiveIsTheOrOverRanksAndOnlyActiveParametersAge) {
  const Outcome o =
      finish({{{1.0}, {1, 0, 0, 0, 0}}, {{1.0}, {0, 0, 1, 0, 0}}, {{1.0}, {1, 0, 0, 1, 0}}}, {});
  EXPECT_EQ(o.active, (std::vector<std::uint8_t>{1, 0, 1, 1, 0}));
  EXPECT_EQ(o.step, (std::vector<std::int32_t>{1, 1, 3, 4, 4}));
}

TEST(Boundary, NonFiniteGradientSkipsAndNamesTheFirstCulprit) {
  const std::vector<Rank> ranks = {{{1.0, 1.0}, {}}, {{1.0, HUGE_VAL}, {}}, {{kNan}, {}}};
  const Outcome o = finish(ranks, {});
  EXPECT_EQ(o.result.overflow, 1);
  EXPECT_EQ(o.result.applied, 0);
  EXPECT_EQ(o.decision.apply, 0);
  EXPECT_EQ(o.result.bad_rank, 1);
  EXPECT_EQ(o.result.bad_parameter, 2);
  EXPECT_EQ(o.step, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(o.active, std::vector<std::uint8_t>(kParameters, 1));
}

TEST(Boundary, NonFiniteGradientIsAppliedWhenAskedFor) {
  BoundaryRule rule;
  rule.skip_non_finite = false;
  rule.clip = 1.0;
  Outcome o = finish({{{kNan}, {}}}, rule);
  EXPECT_EQ(o.result.overflow, 1);
  EXPECT_EQ(o.decision.apply, 1);
  EXPECT_TRUE(std::isnan(o.decision.gradient_multiplier));  // as torch's clip_grad_norm_
  EXPECT_EQ(o.step[0], 1);
  rule.loss_scale.dynamic = true;
  o = finish({{{kNan}, {}}}, rule);
  EXPECT_EQ(o.decision.apply, 0);
}

TEST(Boundary, StaticScaleNeverMoves) {
  BoundaryRule rule;
  LossScaleState state;
  state.scale = 128.0F;
  for (double partial : {1.0, kNan, 1.0}) {
    const Outcome o = finish({{{partial}, {}}}, rule, state);
    EXPECT_EQ(o.state.scale, 128.0F);
    EXPECT_EQ(o.state.iteration, 0);
    EXPECT_EQ(o.result.at_min_scale, 0);
  }
}

TEST(Boundary, OrderMismatchNamesTheRankOutsideTheMajority) {
  struct {
    std::vector<std::uint64_t> hashes;
    int bad_rank;
  } const cases[] = {{{1, 1, 1}, -1},   {{1, 2}, 1},          {{1, 2, 2}, 0},
                     {{5, 5, 7, 5}, 2}, {{3, 4, 4, 3}, 1},    {{9}, -1},
                     {{1, 2, 3, 4}, 1}, {{7, 8, 8, 9, 8}, 0}, {{2, 2, 2, 2, 6}, 4}};
  for (const auto& c : cases) {
    std::vector<Rank> ranks;
    for (std::uint64_t hash : c.hashes) {
      ranks.push_back({{1.0}, {}, hash});
    }
    BoundaryRule rule;
    rule.loss_scale.dynamic = true;
    LossScaleState state;
    state.scale = 64.0F;
    const Outcome o = finish(ranks, rule, state);
    EXPECT_EQ(o.result.bad_rank, c.bad_rank);
    EXPECT_EQ(o.result.order_mismatch, c.bad_rank >= 0 ? 1 : 0);
    EXPECT_EQ(o.decision.apply, c.bad_rank >= 0 ? 0 : 1);
    EXPECT_EQ(o.state.iteration, c.bad_rank >= 0 ? 0 : 1);
    EXPECT_EQ(o.step[0], c.bad_rank >= 0 ? 0 : 1);
  }
}

// DeepSpeed's dynamic scaler, written down from its description with a countdown-free bookkeeping:
// the list of what happened is kept, and every quantity is derived from it.
class Simulation {
 public:
  explicit Simulation(const LossScaleRule& rule)
      : rule_(rule), scale_(rule.initial_scale), shots_(rule.hysteresis) {}

  double scale() const { return scale_; }
  int shots() const { return shots_; }
  bool stuck() const { return stuck_; }

  void record(bool overflow) {
    stuck_ = false;
    history_.push_back(overflow);
    const int since = steps_since_overflow();
    if (overflow) {
      if (shots_ > 1 && rule_.hysteresis != 1) {
        --shots_;
      } else {
        stuck_ = scale_ == rule_.min_scale;
        scale_ = std::max(scale_ / rule_.factor, rule_.min_scale);
      }
      return;
    }
    const bool grow = since % rule_.window == 0;
    if (rule_.consecutive_hysteresis || grow) {
      shots_ = rule_.hysteresis;
    }
    if (grow) {
      scale_ *= rule_.factor;
    }
  }

 private:
  // Distance to the last overflow; a run without any counts from before the first step.
  int steps_since_overflow() const {
    int distance = 0;
    for (auto it = history_.rbegin(); it != history_.rend() && !*it; ++it) {
      ++distance;
    }
    return distance;
  }

  LossScaleRule rule_;
  double scale_;
  int shots_;
  bool stuck_ = false;
  std::vector<bool> history_;
};

TEST(LossScale, RandomSequencesFollowTheSimulation) {
  std::mt19937 random(3);
  for (int window : {1, 2, 3, 7}) {
    for (int hysteresis : {1, 2, 3}) {
      for (bool consecutive : {false, true}) {
        BoundaryRule rule;
        rule.loss_scale = {true, 1024.0, 2.0, 0.5, window, hysteresis, consecutive};
        Simulation simulation(rule.loss_scale);
        LossScaleState state = initial_loss_scale_state(rule.loss_scale);
        for (int i = 0; i < 200; ++i) {
          // Long runs of either kind, so that the minimum is reached as well.
          const bool overflow = random() % 100 < ((i / 25) % 2 == 0 ? 80U : 10U);
          const double used = simulation.scale();
          simulation.record(overflow);
          const Outcome o = finish({{{overflow ? HUGE_VAL : 1.0}, {}}}, rule, state);
          state = o.state;
          ASSERT_EQ(o.result.loss_scale, used) << "step " << i;
          ASSERT_EQ(state.scale, simulation.scale()) << "step " << i;
          ASSERT_EQ(o.result.next_loss_scale, state.scale);
          ASSERT_EQ(state.hysteresis_left, simulation.shots()) << "step " << i;
          ASSERT_EQ(o.result.at_min_scale, simulation.stuck() ? 1 : 0) << "step " << i;
          ASSERT_EQ(o.result.applied, overflow ? 0 : 1);
          ASSERT_EQ(state.iteration, i + 1);
        }
      }
    }
  }
}

// Written out by hand: window 2, hysteresis 2.
TEST(LossScale, AShortSequenceByHand) {
  BoundaryRule rule;
  rule.loss_scale = {true, 16.0, 2.0, 8.0, 2, 2, false};
  LossScaleState state = initial_loss_scale_state(rule.loss_scale);
  struct {
    bool overflow;
    float scale_after;
    int at_min;
  } const steps[] = {{false, 16, 0},  // one step since the start
                     {false, 32, 0},  // two: grow
                     {true, 32, 0},   // hysteresis absorbs it
                     {true, 16, 0},   // lower
                     {true, 8, 0},   {true, 8, 1}, {false, 8, 0}, {false, 16, 0}, {true, 16, 0}};
  for (const auto& s : steps) {
    const Outcome o = finish({{{s.overflow ? kNan : 1.0}, {}}}, rule, state);
    state = o.state;
    EXPECT_EQ(state.scale, s.scale_after);
    EXPECT_EQ(o.result.at_min_scale, s.at_min);
  }
}

TEST(LossScale, GrowthStopsBeforeInfinity) {
  BoundaryRule rule;
  rule.loss_scale = {true, 0x1p127, 2.0, 1.0, 1, 1, false};
  const Outcome o = finish({{{1.0}, {}}}, rule, initial_loss_scale_state(rule.loss_scale));
  EXPECT_EQ(o.state.scale, 0x1p127F);
}

}  // namespace
}  // namespace shardwise::kernels
