#include "shardwise/config/optimizer_types.h"

#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "shardwise/config/config.h"

namespace shardwise::config {
namespace {

Resolved load_with(const std::string& members) {
  return load_text("{\"train_batch_size\": 8, " + members + "}", {});
}

// "" when the document is right, else the error.
std::string error_with(const std::string& members) {
  try {
    load_with(members);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(OptimizerTypes, WhatTorchsClassesCarryOutIsRefusedWithoutPython) {
  const auto refusal = [](const char* members) -> std::string {
    try {
      load_with(members).require_no_python();
      return "";
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  EXPECT_TRUE(contains(refusal(R"("optimizer": {"type": "rmsprop"})"),
                       "optimizer.type: \"RMSprop\" is carried out by torch's own class"));
  EXPECT_TRUE(contains(refusal(R"("optimizer": {"type": "Adam", "params": {"amsgrad": true}})"),
                       "optimizer.params.amsgrad: true is carried out by torch's own class"));
  EXPECT_EQ(refusal(R"("optimizer": {"type": "Muon"})"), "");
  EXPECT_EQ(refusal("\"steps_per_print\": 1"), "");
}

TEST(OptimizerTypes, SixteenBitMastersNeedARuleWithAKernel) {
  const auto error = [](const std::string& optimizer) {
    return error_with(
        (R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true}, "optimizer": )" +
         optimizer)
            .c_str());
  };
  for (const char* type : {"Adam", "AdamW", "SGD", "Lion", "Adagrad"}) {
    EXPECT_EQ(error(R"({"type": ")" + std::string(type) + "\"}"), "");
  }
  for (const char* type : {"Lamb", "Muon", "RMSprop"}) {
    EXPECT_TRUE(contains(error(R"({"type": ")" + std::string(type) + "\"}"),
                         "optimizer.type: \"" + std::string(type) +
                             "\" does not go with bf16.bf16_master_weights_and_grads"));
  }
  EXPECT_TRUE(contains(error(R"({"type": "Adam", "params": {"amsgrad": true}})"),
                       "optimizer.params.amsgrad: true does not go with bf16"));
  EXPECT_EQ(error_with(R"("bf16": {"enabled": false, "bf16_master_weights_and_grads": true},
                          "optimizer": {"type": "Muon"})"),
            "");
}

TEST(OptimizerTypes, AnUnknownSettingIsAnsweredWithThoseOfTheType) {
  const std::string sgd = error_with(R"("optimizer": {"type": "sgd", "params": {"qqqqqqqq": 1}})");
  EXPECT_TRUE(
      sgd.ends_with("known here: lr, weight_decay, momentum, dampening, nesterov, maximize"))
      << sgd;
  const std::string adam =
      error_with(R"("optimizer": {"type": "AdamW", "params": {"mommentum": 1}})");
  EXPECT_TRUE(contains(adam, "did you mean momentum?")) << adam;
  const std::string range =
      error_with(R"("scheduler": {"type": "LRRangeTest", "params": {"qqqqqqqq": 1}})");
  EXPECT_TRUE(contains(range, "known here: lr_range_test_min_lr")) << range;
  EXPECT_FALSE(contains(range, "cycle_min_lr")) << range;
}

TEST(SchedulerTypes, NullIsNoValueOfRequiredKeys) {
  EXPECT_TRUE(error_with(R"("scheduler": {"type": "WarmupDecayLR",
                                          "params": {"total_num_steps": "abc"}})")
                  .ends_with("allowed: an integer >= 1"));
}

}  // namespace
}  // namespace shardwise::config
