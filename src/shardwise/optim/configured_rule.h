// The update rule that a configuration names.
#pragma once

#include "shardwise/config/config.h"
#include "shardwise/optim/update_rule.h"

namespace shardwise::optim {

struct ConfiguredRule {
  RuleOptions rule;                // without a name when the configuration names no optimizer
  GroupValues values;              // of a parameter group that sets nothing itself
  GroupValues matrix_values = {};  // likewise, of one that Muon moves; empty for other rules
};

// Whether only torch's own class carries out the rule.
bool needs_torch(const config::OptimizerConfig& optimizer);

// Not for an optimizer that only torch's own class carries out: Resolved::require_no_python()
// refuses those in programs without Python.
ConfiguredRule configured_rule(const config::OptimizerConfig& optimizer);

}  // namespace shardwise::optim
