#include "shardwise/optim/update_rule.h"

#include "shardwise/base/check.h"

namespace shardwise::optim {
namespace {

// Reads values of one group and complains about what is missing or left over.
class GroupReader {
 public:
  GroupReader(const GroupValues& values, std::size_t group) : values_(values), group_(group) {}

  double take(const std::string& key) {
    const auto at = values_.find(key);
    SW_USER_CHECK(UsageError, at != values_.end(), "param_groups[", group_, "] lacks '", key,
                  "'; put it back, the update reads it");
    ++taken_;
    return at->second;
  }
  bool take_flag(const std::string& key) { return take(key) != 0; }
  void check_all_taken() const {
    SW_CHECK_EQ(taken_, values_.size(), "unread hyperparameters in group ", group_);
  }

 private:
  const GroupValues& values_;
  std::size_t group_;
  std::size_t taken_ = 0;
};

class AdamRule : public UpdateRule {
 public:
  std::string name() const override { return "adam"; }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }

  void set_groups(const std::vector<GroupValues>& groups) override {
    groups_.clear();
    for (const GroupValues& values : groups) {
      GroupReader reader(values, groups_.size());
      groups_.push_back({.lr = reader.take("lr"),
                         .beta1 = reader.take("beta1"),
                         .beta2 = reader.take("beta2"),
                         .eps = reader.take("eps"),
                         .weight_decay = reader.take("weight_decay"),
                         .decoupled_decay = reader.take_flag("decoupled"),
                         .bias_correction = reader.take_flag("bias_correction")});
      reader.check_all_taken();
    }
  }

  void run(const kernels::Place& place, const kernels::ChunkTable& table,
           const kernels::StepDecision* decision, const std::uint8_t* active,
           const std::int32_t* step) const override {
    kernels::adam_update(place, table, groups_, decision, active, step);
  }

 private:
  std::vector<kernels::AdamGroup> groups_;
};

class SgdRule : public UpdateRule {
 public:
  explicit SgdRule(bool with_momentum) : with_momentum_(with_momentum) {}
  std::string name() const override { return "sgd"; }
  std::vector<std::string> state_names() const override {
    return with_momentum_ ? std::vector<std::string>{"momentum_buffer"}
                          : std::vector<std::string>{};
  }

  void set_groups(const std::vector<GroupValues>& groups) override {
    groups_.clear();
    for (const GroupValues& values : groups) {
      GroupReader reader(values, groups_.size());
      groups_.push_back({.lr = reader.take("lr"),
                         .momentum = reader.take("momentum"),
                         .dampening = reader.take("dampening"),
                         .weight_decay = reader.take("weight_decay"),
                         .nesterov = reader.take_flag("nesterov")});
      reader.check_all_taken();
      SW_USER_CHECK(UsageError, with_momentum_ || groups_.back().momentum == 0, "param_groups[",
                    groups_.size() - 1, "]['momentum'] was 0 when the optimizer was made and is ",
                    groups_.back().momentum,
                    " now; no momentum buffer exists. Make the optimizer with momentum.");
    }
  }

  void run(const kernels::Place& place, const kernels::ChunkTable& table,
           const kernels::StepDecision* decision, const std::uint8_t* active,
           const std::int32_t* step) const override {
    kernels::sgd_update(place, table, groups_, decision, active, step);
  }

 private:
  bool with_momentum_;
  std::vector<kernels::SgdGroup> groups_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_update_rule(const std::string& name, bool with_momentum) {
  if (name == "adam") {
    return std::make_unique<AdamRule>();
  }
  SW_USER_CHECK(UsageError, name == "sgd", "no update rule '", name, "'; there are adam and sgd");
  return std::make_unique<SgdRule>(with_momentum);
}

}  // namespace shardwise::optim
