// Which learning-rate schedules are known, which of them this version has, and which settings each
// one takes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwise::config {

// All names of DeepSpeed and of torch.optim.lr_scheduler.
std::vector<std::string> known_scheduler_types();

bool is_available_scheduler(std::string_view type);

// Names under scheduler.params that this type takes. Only for available types.
std::vector<std::string> scheduler_settings(std::string_view type);

// Those of them without a default.
std::vector<std::string> required_scheduler_settings(std::string_view type);

}  // namespace shardwise::config
