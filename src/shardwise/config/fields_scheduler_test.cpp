#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "shardwise/base/error.h"
#include "shardwise/config/config.h"

namespace shardwise::config {
namespace {

// A document with this section "scheduler".
std::string document(const std::string& scheduler) {
  return "{\"train_batch_size\": 8, \"scheduler\": " + scheduler + "}";
}

Resolved load(const std::string& scheduler) { return load_text(document(scheduler), {}); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool has_note(const Resolved& resolved, const std::string& part) {
  const auto& notes = resolved.notes();
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return contains(note, part); });
}

TEST(SchedulerFields, SchedulesReachTheirMembers) {
  const SchedulerParams p = load(R"({"type": "OneCycle", "params": {
    "cycle_min_lr": 0.5, "cycle_max_lr": [1, 2], "decay_lr_rate": 3, "cycle_first_step_size": 4,
    "cycle_second_step_size": 5, "cycle_first_stair_count": 6, "cycle_second_stair_count": 7,
    "decay_step_size": 8, "cycle_momentum": false, "cycle_min_mom": 0.125, "cycle_max_mom": 0.25,
    "decay_mom_rate": -1, "last_batch_iteration": 9}})")
                                .config()
                                .scheduler.params;
  EXPECT_EQ(p.cycle_min_lr, std::vector<double>{0.5});
  EXPECT_EQ(p.cycle_max_lr, (std::vector<double>{1, 2}));
  EXPECT_EQ(p.decay_lr_rate, 3);
  EXPECT_EQ(p.cycle_first_step_size, 4);
  EXPECT_EQ(p.cycle_second_step_size, 5);
  EXPECT_EQ(p.cycle_first_stair_count, 6);
  EXPECT_EQ(p.cycle_second_stair_count, 7);
  EXPECT_EQ(p.decay_step_size, 8);
  EXPECT_FALSE(p.cycle_momentum);
  EXPECT_EQ(p.cycle_min_mom, 0.125);
  EXPECT_EQ(p.cycle_max_mom, 0.25);
  EXPECT_EQ(p.decay_mom_rate, -1);
  EXPECT_EQ(p.last_batch_iteration, 9);
}

TEST(SchedulerFields, TheLargestRateOfAWarmUpDependsOnItsType) {
  const auto most = [](const std::string& scheduler) {
    return load(scheduler).config().scheduler.params.warmup_max_lr;
  };
  const std::string decay = R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 5)";
  EXPECT_EQ(most(R"({"type": "WarmupLR"})"), std::vector<double>{});
  EXPECT_EQ(most(decay + "}}"), std::vector<double>{1e-3});
  EXPECT_EQ(most(decay + R"(, "warmup_max_lr": null}})"), std::vector<double>{});
  EXPECT_EQ(most(decay + R"(, "warmup_max_lr": [1, 2]}})"), (std::vector<double>{1, 2}));
}

TEST(SchedulerFields, SettingsOfSchedules) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"type": "warmuplr"})", "(did you mean WarmupLR"},
      {R"({"type": "WarmupDecayLR"})",
       "scheduler.params.total_num_steps is missing; WarmupDecayLR needs it"},
      {R"({"type": "WarmupCosineLR"})", "scheduler.params.total_num_steps is missing"},
      {R"({"type": "OneCycle", "params": {"cycle_min_lr": 1}})",
       "scheduler.params.cycle_max_lr is missing"},
      {R"({"type": "WarmupLR", "params": {"total_num_steps": 5}})",
       "scheduler.params.total_num_steps is not a setting of WarmupLR"},
      {R"({"type": "WarmupLR", "params": {"warmup_num_step": 5}})",
       "did you mean warmup_num_steps?"},
      {R"({"type": "WarmupLR", "params": {"warmup_min_lr": []}})",
       "[] has no entries; allowed: a number >= 0 or a list of them"},
      {R"({"type": "WarmupLR", "params": {"warmup_min_lr": [1, -1]}})", "is too small"},
      {R"({"type": "WarmupLR", "params": {"warmup_min_lr": "1e-3"}})",
       "(write 1e-3 without quotes)"},
      {R"({"type": "WarmupLR", "params": {"warmup_type": "cosine"}})", "\"log\" or \"linear\""},
      {R"({"type": "LRRangeTest", "params": {"lr_range_test_step_size": 0}})", "is too small"},
      {R"({"type": "OneCycle", "params": {"cycle_min_lr": 1, "cycle_max_lr": 2,
          "cycle_max_mom": 1}})",
       "scheduler.params.cycle_max_mom"}};
  for (const auto& [scheduler, part] : wrong) {
    try {
      load(scheduler);
      ADD_FAILURE() << scheduler;
    } catch (const ConfigError& error) {
      EXPECT_TRUE(contains(error.what(), part)) << scheduler << ": " << error.what();
    }
  }
}

TEST(SchedulerFields, ASchedulePrintsItsOwnSettingsAlone) {
  const Resolved resolved = load(R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 5}})");
  const std::string text = resolved.to_json(false);
  EXPECT_TRUE(contains(text, "\"warmup_num_steps\": 1000"));
  EXPECT_FALSE(contains(text, "cycle_min_lr"));
  EXPECT_EQ(load_text(text, {}).to_json(false), text);
  EXPECT_TRUE(has_note(resolved, "the warm-up does not end"));
}

TEST(SchedulerFields, ScheduleSettingsWithoutATypeDoNothing) {
  EXPECT_TRUE(
      has_note(load(R"({"params": {"warmup_num_steps": 5}})"), "scheduler.params has no effect"));
}

}  // namespace
}  // namespace shardwise::config
