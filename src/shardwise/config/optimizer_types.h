// Which optimizers are known, which of them this version has, and which settings each one takes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwise::config {

// All names of DeepSpeed and of torch.optim, in the spelling that messages use.
std::vector<std::string> known_optimizer_types();

bool is_available_optimizer(std::string_view type);

// Names under optimizer.params that this type takes. Only for available types.
std::vector<std::string> optimizer_settings(std::string_view type);

}  // namespace shardwise::config
