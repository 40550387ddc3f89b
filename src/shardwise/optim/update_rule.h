// Elementwise update rules over shards: which states they keep, which hyperparameters they read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/kernels/update.h"

namespace shardwise::optim {

// Hyperparameters of one parameter group by name, flags as 0 or 1.
using GroupValues = std::map<std::string, double>;

// An algorithm that updates each element from its own gradient, weight and states (fp32). The
// hyperparameters are set anew before every step, so schedules need nothing special.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string name() const = 0;
  // "exp_avg", "exp_avg_sq", "momentum_buffer": torch's names; at most two.
  virtual std::vector<std::string> state_names() const = 0;
  // Throws UsageError for a missing hyperparameter, naming group and key.
  virtual void set_groups(const std::vector<GroupValues>& groups) = 0;
  // See kernels/update.h; runs on place's stream.
  virtual void run(const kernels::Place& place, const kernels::ChunkTable& table,
                   const kernels::StepDecision* decision, const std::uint8_t* active,
                   const std::int32_t* step) const = 0;
};

// "adam" (Adam and AdamW: `decoupled` decides) or "sgd". SGD keeps its buffer only `with_momentum`.
std::unique_ptr<UpdateRule> make_update_rule(const std::string& name, bool with_momentum);

}  // namespace shardwise::optim
