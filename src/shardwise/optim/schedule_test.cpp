// Schedules against closed forms. tests/test_schedules.py compares them with a second
// implementation over many settings.
#include "shardwise/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "shardwise/base/error.h"

namespace shardwise::optim {
namespace {

std::unique_ptr<Schedule> make(const std::string& type, const std::string& params = "") {
  const std::string text = "{\"train_batch_size\": 1, \"scheduler\": {\"type\": \"" + type +
                           "\", \"params\": {" + params + "}}}";
  return make_schedule(config::load_text(text, {}).config().scheduler);
}

// The rate of the only group, which had the rate `base`.
double rate(const Schedule& schedule, std::int64_t iteration, double base = 1) {
  const ScheduleValues values = schedule.values(iteration, {base});
  EXPECT_EQ(values.lr.size(), 1U);
  return values.lr.at(0);
}

TEST(Schedule, NoneIsNamed) { EXPECT_EQ(make_schedule({}), nullptr); }

TEST(WarmupLR, LinearIsAStraightLine) {
  const auto schedule = make("WarmupLR",
                             R"("warmup_type": "linear", "warmup_num_steps": 10,
                                "warmup_min_lr": 2, "warmup_max_lr": 12)");
  EXPECT_EQ(rate(*schedule, -1), 2);
  for (int n = 0; n <= 10; ++n) {
    EXPECT_DOUBLE_EQ(rate(*schedule, n), 2 + n);
  }
  EXPECT_EQ(rate(*schedule, 1'000'000), 12);
}

TEST(WarmupLR, LogarithmicReachesItsEndOneStepEarly) {
  const auto schedule = make("WarmupLR", R"("warmup_num_steps": 8, "warmup_max_lr": 3)");
  EXPECT_EQ(rate(*schedule, -1), 0);
  EXPECT_EQ(rate(*schedule, 0), 0);
  EXPECT_DOUBLE_EQ(rate(*schedule, 1), 1);  // log2(2) / log2(8)
  EXPECT_DOUBLE_EQ(rate(*schedule, 3), 2);
  EXPECT_DOUBLE_EQ(rate(*schedule, 7), 3);
  EXPECT_EQ(rate(*schedule, 8), 3);
}

TEST(WarmupLR, WithoutALargestRateItIsTheOptimizers) {
  const auto schedule = make("WarmupLR", R"("warmup_num_steps": 4)");
  EXPECT_EQ(schedule->values(9, {0.25, 7}).lr, (std::vector<double>{0.25, 7}));
}

TEST(WarmupLR, GroupsHaveTheirOwnRates) {
  const auto schedule = make("WarmupLR",
                             R"("warmup_type": "linear", "warmup_num_steps": 4,
                                "warmup_min_lr": [0, 1], "warmup_max_lr": [4, 3])");
  EXPECT_EQ(schedule->values(2, {9, 9}).lr, (std::vector<double>{2, 2}));
  EXPECT_EQ(schedule->values(4, {9, 9}).lr, (std::vector<double>{4, 3}));
  try {
    schedule->values(2, {9, 9, 9});
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "scheduler.params.warmup_min_lr: 2 values for 3 parameter groups; give one "
                 "number, or one for each group");
  }
}

TEST(WarmupLR, FewerThanTwoStepsAreTwo) {
  for (const char* steps : {"0", "1", "2"}) {
    const auto schedule =
        make("WarmupLR", std::string("\"warmup_max_lr\": 1, \"warmup_num_steps\": ") + steps);
    EXPECT_EQ(rate(*schedule, 0), 0) << steps;
    EXPECT_DOUBLE_EQ(rate(*schedule, 1), 1) << steps;
  }
}

TEST(WarmupDecayLR, FallsToZeroAndStays) {
  const auto schedule = make("WarmupDecayLR",
                             R"("total_num_steps": 100, "warmup_num_steps": 20,
                                "warmup_type": "linear", "warmup_max_lr": 8)");
  EXPECT_EQ(rate(*schedule, -1), 0);
  EXPECT_DOUBLE_EQ(rate(*schedule, 10), 4);
  EXPECT_DOUBLE_EQ(rate(*schedule, 20), 8);
  EXPECT_DOUBLE_EQ(rate(*schedule, 60), 4);
  EXPECT_DOUBLE_EQ(rate(*schedule, 99), 0.1);
  EXPECT_EQ(rate(*schedule, 100), 0);
  EXPECT_EQ(rate(*schedule, 5000), 0);
}

TEST(WarmupDecayLR, LargestRateIsAThousandthUnlessGiven) {
  const auto schedule = make("WarmupDecayLR", R"("total_num_steps": 100, "warmup_num_steps": 20)");
  EXPECT_DOUBLE_EQ(rate(*schedule, 20, 5), 1e-3);
}

TEST(WarmupCosineLR, IsAShareOfTheOptimizersRate) {
  const auto schedule = make("WarmupCosineLR",
                             R"("total_num_steps": 110, "warmup_num_steps": 10,
                                "warmup_type": "linear", "warmup_min_ratio": 0.5,
                                "cos_min_ratio": 0.25)");
  EXPECT_EQ(rate(*schedule, -1, 4), 0);
  EXPECT_DOUBLE_EQ(rate(*schedule, 0, 4), 2);
  EXPECT_DOUBLE_EQ(rate(*schedule, 5, 4), 3);
  EXPECT_DOUBLE_EQ(rate(*schedule, 59, 4), 4 * (0.25 + 0.75 / 2));  // half of the descent
  EXPECT_DOUBLE_EQ(rate(*schedule, 109, 4), 1);
  EXPECT_DOUBLE_EQ(rate(*schedule, 150, 4), 1);  // does not rise again
  EXPECT_EQ(schedule->values(59, {4, 8}).lr[1], 2 * schedule->values(59, {4, 8}).lr[0]);
}

TEST(LRRangeTest, GrowsSteadilyOrInStairs) {
  const std::string params = R"("lr_range_test_min_lr": 0.5, "lr_range_test_step_size": 10,
                                "lr_range_test_step_rate": 2)";
  const auto line = make("LRRangeTest", params);
  const auto stairs = make("LRRangeTest", params + R"(, "lr_range_test_staircase": true)");
  EXPECT_EQ(rate(*line, -1), 0.5);
  EXPECT_DOUBLE_EQ(rate(*line, 4), 1);
  EXPECT_DOUBLE_EQ(rate(*line, 9), 1.5);
  EXPECT_EQ(rate(*stairs, 8), 0.5);
  EXPECT_EQ(rate(*stairs, 9), 1.5);
  EXPECT_EQ(rate(*stairs, 18), 1.5);
  EXPECT_EQ(rate(*stairs, 19), 2.5);
}

constexpr const char* kCycle = R"("cycle_min_lr": 1, "cycle_max_lr": 11,
    "cycle_first_step_size": 10, "cycle_second_step_size": 20, "cycle_min_mom": 0.5,
    "cycle_max_mom": 0.75)";

double momentum(const Schedule& schedule, std::int64_t iteration) {
  return schedule.values(iteration, {1}).momenta.at(0);
}

TEST(OneCycle, RatesRiseAndFallAndMomentaTheOtherWay) {
  const auto schedule = make("OneCycle", kCycle);
  EXPECT_EQ(rate(*schedule, -1), 1);
  EXPECT_DOUBLE_EQ(rate(*schedule, 4), 6);
  EXPECT_DOUBLE_EQ(rate(*schedule, 9), 11);
  EXPECT_DOUBLE_EQ(rate(*schedule, 19), 6);
  EXPECT_DOUBLE_EQ(rate(*schedule, 29), 1);
  EXPECT_EQ(rate(*schedule, 100), 1);  // no decay
  EXPECT_EQ(momentum(*schedule, -1), 0.5);
  EXPECT_DOUBLE_EQ(momentum(*schedule, 4), 0.625);
  EXPECT_DOUBLE_EQ(momentum(*schedule, 9), 0.5);
  EXPECT_DOUBLE_EQ(momentum(*schedule, 29), 0.75);
  EXPECT_EQ(momentum(*schedule, 100), 0.75);
}

TEST(OneCycle, DecaysAfterTheCycle) {
  const auto schedule = make("OneCycle", std::string(kCycle) + R"(, "decay_step_size": 5,
      "decay_lr_rate": 2, "decay_mom_rate": -0.1)");
  EXPECT_DOUBLE_EQ(rate(*schedule, 29), 1);
  EXPECT_DOUBLE_EQ(rate(*schedule, 34), 1.0 / 3);
  EXPECT_DOUBLE_EQ(rate(*schedule, 39), 1.0 / 5);
  EXPECT_DOUBLE_EQ(momentum(*schedule, 34), 0.75 * 0.9);
}

TEST(OneCycle, Stairs) {
  const auto schedule = make("OneCycle", std::string(kCycle) + R"(, "cycle_first_stair_count": 2,
      "cycle_second_stair_count": 4)");
  for (const auto& [iteration, expected] : {std::pair{3, 1.0},
                                            {4, 6.0},
                                            {8, 6.0},
                                            {9, 11.0},
                                            {10, 8.5},
                                            {14, 8.5},
                                            {15, 6.0},
                                            {24, 3.5},
                                            {25, 1.0}}) {
    EXPECT_DOUBLE_EQ(rate(*schedule, iteration), expected) << iteration;
  }
}

TEST(OneCycle, BetasAreLeftAloneOnRequest) {
  const auto schedule = make("OneCycle", std::string(kCycle) + R"(, "cycle_momentum": false)");
  EXPECT_TRUE(schedule->values(3, {1, 1}).momenta.empty());
}

}  // namespace
}  // namespace shardwise::optim
