#include "shardwise/optim/update_rule.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/optim/muon_rule.h"

namespace shardwise::optim {
namespace {

using kernels::AdagradGroup;
using kernels::AdamGroup;
using kernels::LionGroup;
using kernels::SgdGroup;

// One hyperparameter: its name and the member of the kernel's group that takes it.
template <typename Group>
struct Setting {
  Setting(const char* key, double Group::* member) : name(key), number(member) {}
  Setting(const char* key, bool Group::* member) : name(key), flag(member) {}

  const char* name;
  double Group::* number = nullptr;
  bool Group::* flag = nullptr;
};

template <typename Group>
using Kernel = void (*)(const kernels::Place&, const kernels::ChunkTable&,
                        const std::vector<Group>&, const kernels::StepDecision*,
                        const std::uint8_t*, const std::int32_t*);

// A rule that one kernel carries out.
template <typename Group>
class KernelRule : public UpdateRule {
 public:
  KernelRule(std::vector<std::string> states, std::vector<Setting<Group>> settings,
             Kernel<Group> kernel)
      : states_(std::move(states)), settings_(std::move(settings)), kernel_(kernel) {}

  std::vector<std::string> state_names() const override { return states_; }

  std::vector<std::string> value_names() const override {
    std::vector<std::string> names;
    for (const Setting<Group>& setting : settings_) {
      names.emplace_back(setting.name);
    }
    return names;
  }

  void set_groups(const std::vector<GroupValues>& groups) override {
    std::vector<Group> read_groups;
    for (const GroupValues& values : groups) {
      read_groups.push_back(read(values, read_groups.size()));
    }
    groups_ = std::move(read_groups);
  }

  bool takes_sixteen_bit_masters() const override { return kernel_ != nullptr; }

  void run(const kernels::Place& place, const kernels::ChunkTable& table,
           const kernels::StepDecision* decision, const std::uint8_t* active,
           const std::int32_t* step) const override {
    SW_CHECK(takes_sixteen_bit_masters(), "this rule has no kernel");
    kernel_(place, table, groups_, decision, active, step);
  }

  std::vector<LambGroup> lamb_groups() const override {
    if constexpr (std::is_same_v<Group, LambGroup>) {
      return groups_;
    } else {
      return {};
    }
  }

 protected:
  const std::vector<Group>& groups() const { return groups_; }
  virtual Group read(const GroupValues& values, std::size_t index) const {
    Group group;
    for (const Setting<Group>& setting : settings_) {
      const auto at = values.find(setting.name);
      SW_USER_CHECK(UsageError, at != values.end(), "param_groups[", index, "] lacks '",
                    setting.name, "'; put it back, the update reads it");
      if (setting.number != nullptr) {
        group.*setting.number = at->second;
      } else {
        group.*setting.flag = at->second != 0;
      }
    }
    SW_CHECK_EQ(settings_.size(), values.size(), "unread hyperparameters in group ", index);
    return group;
  }

 private:
  std::vector<std::string> states_;
  std::vector<Setting<Group>> settings_;
  Kernel<Group> kernel_;
  std::vector<Group> groups_;
};

class SgdRule : public KernelRule<SgdGroup> {
 public:
  explicit SgdRule(bool with_momentum)
      : KernelRule(with_momentum ? std::vector<std::string>{"momentum_buffer"}
                                 : std::vector<std::string>{},
                   {{"lr", &SgdGroup::lr},
                    {"momentum", &SgdGroup::momentum},
                    {"dampening", &SgdGroup::dampening},
                    {"weight_decay", &SgdGroup::weight_decay},
                    {"nesterov", &SgdGroup::nesterov}},
                   kernels::update<SgdGroup>),
        with_momentum_(with_momentum) {}

  // torch's buffer begins with the first gradient under momentum, undamped; ours begins with the
  // first step, so that a damped one cannot begin later.
  void set_groups(const std::vector<GroupValues>& groups) override {
    KernelRule::set_groups(groups);
    for (std::size_t i = 0; i < this->groups().size(); ++i) {
      const SgdGroup& group = this->groups()[i];
      const bool known = i < had_momentum_.size();
      SW_USER_CHECK(UsageError,
                    !known || had_momentum_[i] || group.momentum == 0 || group.dampening == 0,
                    "param_groups[", i, "]['momentum'] was 0 in the steps before and is ",
                    group.momentum, " now, which takes a 'dampening' of 0, not ", group.dampening,
                    "; set it to 0, or begin with momentum");
      had_momentum_.resize(std::max(had_momentum_.size(), i + 1));
      had_momentum_[i] = had_momentum_[i] || group.momentum != 0;
    }
  }

 protected:
  SgdGroup read(const GroupValues& values, std::size_t index) const override {
    const SgdGroup group = KernelRule::read(values, index);
    SW_USER_CHECK(UsageError, with_momentum_ || group.momentum == 0, "param_groups[", index,
                  "]['momentum'] was 0 when the optimizer was made and is ", group.momentum,
                  " now; no momentum buffer exists. Make the optimizer with momentum.");
    return group;
  }

 private:
  bool with_momentum_;
  std::vector<bool> had_momentum_;  // by group, in any step
};

class OutsideRule : public UpdateRule {
 public:
  std::vector<std::string> state_names() const override { return {}; }
  std::vector<std::string> value_names() const override { return {}; }
  void set_groups(const std::vector<GroupValues>&) override {}
  bool takes_sixteen_bit_masters() const override { return false; }
  void run(const kernels::Place&, const kernels::ChunkTable&, const kernels::StepDecision*,
           const std::uint8_t*, const std::int32_t*) const override {
    SW_FAIL(InternalError, "an outside rule has no kernel");
  }
};

std::unique_ptr<UpdateRule> make_adam() {
  return std::make_unique<KernelRule<AdamGroup>>(
      std::vector<std::string>{"exp_avg", "exp_avg_sq"},
      std::vector<Setting<AdamGroup>>{{"lr", &AdamGroup::lr},
                                      {"beta1", &AdamGroup::beta1},
                                      {"beta2", &AdamGroup::beta2},
                                      {"eps", &AdamGroup::eps},
                                      {"weight_decay", &AdamGroup::weight_decay},
                                      {"decoupled_weight_decay", &AdamGroup::decoupled_decay},
                                      {"bias_correction", &AdamGroup::bias_correction}},
      kernels::update<AdamGroup>);
}

std::unique_ptr<UpdateRule> make_lion() {
  return std::make_unique<KernelRule<LionGroup>>(
      std::vector<std::string>{"exp_avg"},
      std::vector<Setting<LionGroup>>{{"lr", &LionGroup::lr},
                                      {"beta1", &LionGroup::beta1},
                                      {"beta2", &LionGroup::beta2},
                                      {"weight_decay", &LionGroup::weight_decay}},
      kernels::update<LionGroup>);
}

std::unique_ptr<UpdateRule> make_adagrad() {
  return std::make_unique<KernelRule<AdagradGroup>>(
      std::vector<std::string>{"sum"},
      std::vector<Setting<AdagradGroup>>{{"lr", &AdagradGroup::lr},
                                         {"lr_decay", &AdagradGroup::lr_decay},
                                         {"eps", &AdagradGroup::eps},
                                         {"weight_decay", &AdagradGroup::weight_decay}},
      kernels::update<AdagradGroup>);
}

std::unique_ptr<UpdateRule> make_lamb() {
  return std::make_unique<KernelRule<LambGroup>>(
      std::vector<std::string>{"exp_avg", "exp_avg_sq"},
      std::vector<Setting<LambGroup>>{{"lr", &LambGroup::lr},
                                      {"beta1", &LambGroup::beta1},
                                      {"beta2", &LambGroup::beta2},
                                      {"eps", &LambGroup::eps},
                                      {"weight_decay", &LambGroup::weight_decay},
                                      {"max_coeff", &LambGroup::max_coeff},
                                      {"min_coeff", &LambGroup::min_coeff},
                                      {"bias_correction", &LambGroup::bias_correction},
                                      {"eps_inside_sqrt", &LambGroup::eps_inside_sqrt}},
      nullptr);
}

}  // namespace

std::unique_ptr<UpdateRule> make_update_rule(const RuleOptions& options) {
  if (options.name == "adam") {
    return make_adam();
  }
  if (options.name == "lion") {
    return make_lion();
  }
  if (options.name == "adagrad") {
    return make_adagrad();
  }
  if (options.name == kLambRule) {
    return make_lamb();
  }
  if (options.name == kMuonRule) {
    return make_muon();
  }
  if (options.name == kOutsideRule) {
    return std::make_unique<OutsideRule>();
  }
  SW_USER_CHECK(UsageError, options.name == "sgd", "no update rule '", options.name,
                "'; there are adam, sgd, lion, adagrad, lamb and muon");
  return std::make_unique<SgdRule>(options.with_momentum);
}

}  // namespace shardwise::optim
