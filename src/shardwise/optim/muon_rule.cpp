#include "shardwise/optim/muon_rule.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "shardwise/base/check.h"

namespace shardwise::optim {
namespace {

class MuonRule : public UpdateRule {
 public:
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  std::vector<std::string> matrix_state_names() const override { return {"momentum_buffer"}; }

  std::vector<std::string> value_names() const override {
    return {"use_muon", "lr",   "weight_decay", "momentum",        "nesterov", "ns_steps", "ns_a",
            "ns_b",     "ns_c", "eps",          "match_rms_adamw", "gram",     "beta1",    "beta2"};
  }

  void set_groups(const std::vector<GroupValues>& groups) override {
    std::vector<MuonGroup> matrices;
    std::vector<kernels::AdamGroup> rest;
    for (const GroupValues& values : groups) {
      const std::size_t index = matrices.size();
      const bool uses_muon = read(values, "use_muon", index) != 0;
      matrices.push_back(uses_muon ? matrix_group(values, index) : MuonGroup{.use_muon = false});
      rest.push_back(uses_muon ? kernels::AdamGroup{} : adam_group(values, index));
    }
    matrices_ = std::move(matrices);
    rest_ = std::move(rest);
  }

  bool takes_sixteen_bit_masters() const override { return false; }
  // Of what is no matrix.
  void run(const kernels::Place& place, const kernels::ChunkTable& table,
           const kernels::StepDecision* decision, const std::uint8_t* active,
           const std::int32_t* step) const override {
    kernels::update<kernels::AdamGroup>(place, table, rest_, decision, active, step);
  }

  std::vector<MuonGroup> muon_groups() const override { return matrices_; }

 private:
  static double read(const GroupValues& values, const char* name, std::size_t index) {
    const auto at = values.find(name);
    SW_USER_CHECK(UsageError, at != values.end(), "param_groups[", index, "] lacks '", name,
                  "'; put it back, the update reads it");
    return at->second;
  }

  static MuonGroup matrix_group(const GroupValues& values, std::size_t index) {
    MuonGroup group;
    group.lr = read(values, "lr", index);
    group.weight_decay = read(values, "weight_decay", index);
    group.momentum = read(values, "momentum", index);
    group.nesterov = read(values, "nesterov", index) != 0;
    const double steps = read(values, "ns_steps", index);
    SW_USER_CHECK(UsageError, steps >= 0 && steps < 100, "param_groups[", index,
                  "]['ns_steps'] is ", steps, "; write a number from 0 to 99, 5 as a rule");
    group.ns_steps = static_cast<int>(steps);
    group.ns_coefficients = {read(values, "ns_a", index), read(values, "ns_b", index),
                             read(values, "ns_c", index)};
    group.eps = read(values, "eps", index);
    group.match_rms_adamw = read(values, "match_rms_adamw", index) != 0;
    group.gram = read(values, "gram", index) != 0;
    return group;
  }

  static kernels::AdamGroup adam_group(const GroupValues& values, std::size_t index) {
    return {.lr = read(values, "lr", index),
            .beta1 = read(values, "beta1", index),
            .beta2 = read(values, "beta2", index),
            .eps = read(values, "eps", index),
            .weight_decay = read(values, "weight_decay", index),
            .decoupled_decay = true,
            .bias_correction = true};
  }

  std::vector<MuonGroup> matrices_;
  std::vector<kernels::AdamGroup> rest_;
};

}  // namespace

bool muon_takes(const std::string& name, std::int64_t dimensions) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const auto contains = [&](const char* word) { return lower.find(word) != std::string::npos; };
  return dimensions >= 2 && !contains("embed") && !contains("lm_head") && !contains("wte.") &&
         !contains("wpe.");
}

std::unique_ptr<UpdateRule> make_muon() { return std::make_unique<MuonRule>(); }

}  // namespace shardwise::optim
