// Which optimizers are known, which of them this version has, and which settings each one takes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardwise/config/json_value.h"

namespace shardwise::config {

// A name under optimizer.params.
struct OptimizerSetting {
  std::string name;
  Value standard;  // this type's default; null: the default of the key
};

// All names of DeepSpeed and of torch.optim, in the spelling that messages use.
std::vector<std::string> known_optimizer_types();

bool is_available_optimizer(std::string_view type);

// Whether torch's own class carries out the type's rule, which needs the Python package.
bool is_torch_optimizer(std::string_view type);

// Whether 16-bit parameters can be their own masters under the type's rule, and what that takes,
// for messages.
bool takes_sixteen_bit_masters(std::string_view type);
std::string sixteen_bit_masters_rule();

// Why this type cannot be had from the configuration, and what to do; "" where there is no more to
// say than that it is not available.
std::string unavailable_optimizer_reason(std::string_view type);

// The settings that this type takes; none where it is not available.
std::vector<OptimizerSetting> optimizer_settings(std::string_view type);
std::vector<std::string> optimizer_setting_names(std::string_view type);

}  // namespace shardwise::config
