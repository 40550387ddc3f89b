// Elementwise update rules over shards: which states they keep, which hyperparameters they read.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/kernels/update.h"

namespace shardwise::optim {

// Hyperparameters of one parameter group by name, flags as 0 or 1.
using GroupValues = std::map<std::string, double>;

// Which rule, and what is settled when its states are made.
struct RuleOptions {
  std::string name;  // "adam" (and AdamW), "sgd", "lion", "adagrad", kLambRule, kMuonRule,
                     // kOutsideRule
  bool with_momentum = false;  // sgd: keep a momentum buffer
  double initial_state = 0;    // what every element of the states starts from
};

// A rule that somebody else carries out, such as a torch.optim object; it keeps its own states.
inline constexpr const char* kOutsideRule = "outside";

// LAMB, whose steps depend on norms of whole parameters; zero/lamb.h carries it out.
inline constexpr const char* kLambRule = "lamb";

// One parameter group of LAMB.
struct LambGroup {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double max_coeff = 10.0;
  double min_coeff = 0.01;
  bool bias_correction = true;
  bool eps_inside_sqrt = false;
};

// Muon, which moves whole matrices (zero/muon.h) and everything else by AdamW; see muon_rule.h.
inline constexpr const char* kMuonRule = "muon";

// One parameter group of matrices under Muon.
struct MuonGroup {
  bool use_muon = true;  // false: no matrices, AdamW moves the group
  double lr = 0.02;
  double weight_decay = 0.0;
  double momentum = 0.95;
  bool nesterov = true;
  int ns_steps = 5;
  // Of the quintic Newton-Schulz iteration X := aX + (bA + cA²)X with A = XXᵀ.
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  bool match_rms_adamw = false;
  bool gram = true;  // iterate on the Gram matrix
};

// An algorithm that updates each element from its own gradient, weight and states. The
// hyperparameters are set anew before every step, so schedules need nothing special.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // "exp_avg", "exp_avg_sq", "momentum_buffer", "sum": torch's names; at most two.
  virtual std::vector<std::string> state_names() const = 0;
  // Of segments of whole matrices (params::Segment::whole_matrices).
  virtual std::vector<std::string> matrix_state_names() const { return state_names(); }
  // What it reads of each group.
  virtual std::vector<std::string> value_names() const = 0;
  // Throws UsageError for a missing hyperparameter, naming group and key.
  virtual void set_groups(const std::vector<GroupValues>& groups) = 0;
  // Whether parameters in 16 bits can be their own masters.
  virtual bool takes_sixteen_bit_masters() const = 0;
  // See kernels/update.h; runs on place's stream.
  virtual void run(const kernels::Place& place, const kernels::ChunkTable& table,
                   const kernels::StepDecision* decision, const std::uint8_t* active,
                   const std::int32_t* step) const = 0;
  // Of kLambRule, as set last.
  virtual std::vector<LambGroup> lamb_groups() const { return {}; }
  // Of kMuonRule, as set last.
  virtual std::vector<MuonGroup> muon_groups() const { return {}; }
};

// Throws UsageError for an unknown name.
std::unique_ptr<UpdateRule> make_update_rule(const RuleOptions& options);

}  // namespace shardwise::optim
