// The update rule that a configuration names.
#pragma once

#include <string>

#include "shardwise/config/config.h"
#include "shardwise/optim/update_rule.h"

namespace shardwise::optim {

struct ConfiguredRule {
  std::string rule;            // of make_update_rule; "" when the configuration names no optimizer
  bool with_momentum = false;  // SGD
  GroupValues values;          // of the one parameter group
};

ConfiguredRule configured_rule(const config::OptimizerConfig& optimizer);

}  // namespace shardwise::optim
