#include "shardwise/config/scheduler_types.h"

namespace shardwise::config {

std::vector<std::string> known_scheduler_types() {
  return {"WarmupLR",
          "WarmupDecayLR",
          "WarmupCosineLR",
          "OneCycle",
          "LRRangeTest",
          "LambdaLR",
          "MultiplicativeLR",
          "StepLR",
          "MultiStepLR",
          "ConstantLR",
          "LinearLR",
          "ExponentialLR",
          "PolynomialLR",
          "CosineAnnealingLR",
          "CosineAnnealingWarmRestarts",
          "CyclicLR",
          "OneCycleLR",
          "ReduceLROnPlateau",
          "SequentialLR",
          "ChainedScheduler"};
}

bool is_available_scheduler(std::string_view type) {
  return type == "WarmupLR" || type == "WarmupDecayLR" || type == "WarmupCosineLR" ||
         type == "OneCycle" || type == "LRRangeTest";
}

std::vector<std::string> scheduler_settings(std::string_view type) {
  if (type == "WarmupLR") {
    return {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type",
            "last_batch_iteration"};
  }
  if (type == "WarmupDecayLR") {
    return {"total_num_steps",  "warmup_min_lr", "warmup_max_lr",
            "warmup_num_steps", "warmup_type",   "last_batch_iteration"};
  }
  if (type == "WarmupCosineLR") {
    return {"total_num_steps", "warmup_min_ratio", "warmup_num_steps",
            "cos_min_ratio",   "warmup_type",      "last_batch_iteration"};
  }
  if (type == "LRRangeTest") {
    return {"lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate",
            "lr_range_test_staircase", "last_batch_iteration"};
  }
  return {"cycle_min_lr",
          "cycle_max_lr",
          "decay_lr_rate",
          "cycle_first_step_size",
          "cycle_second_step_size",
          "cycle_first_stair_count",
          "cycle_second_stair_count",
          "decay_step_size",
          "cycle_momentum",
          "cycle_min_mom",
          "cycle_max_mom",
          "decay_mom_rate",
          "last_batch_iteration"};
}

std::vector<std::string> required_scheduler_settings(std::string_view type) {
  if (type == "OneCycle") {
    return {"cycle_min_lr", "cycle_max_lr"};
  }
  return type == "WarmupDecayLR" || type == "WarmupCosineLR"
             ? std::vector<std::string>{"total_num_steps"}
             : std::vector<std::string>{};
}

}  // namespace shardwise::config
