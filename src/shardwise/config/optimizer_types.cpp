#include "shardwise/config/optimizer_types.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shardwise::config {
namespace {

using Settings = std::vector<OptimizerSetting>;

Value pair_of(double first, double second) {
  return Value::array({Value::of(first), Value::of(second)});
}

// Rules that the core carries out, with DeepSpeed's defaults.
const std::map<std::string, Settings, std::less<>>& core_types() {
  static const std::map<std::string, Settings, std::less<>> types = [] {
    const Settings adam = {{"lr", {}},
                           {"betas", {}},
                           {"eps", {}},
                           {"weight_decay", {}},
                           {"bias_correction", {}},
                           {"adam_w_mode", {}},
                           {"torch_adam", {}},
                           {"amsgrad", {}},
                           {"set_grad_none", {}},
                           {"fp32_optimizer_states", {}},
                           {"capturable", {}}};
    return std::map<std::string, Settings, std::less<>>{
        {"Adam", adam},
        {"AdamW", adam},
        {"SGD",
         {{"lr", {}}, {"momentum", {}}, {"dampening", {}}, {"weight_decay", {}}, {"nesterov", {}}}},
        {"Lamb",
         {{"lr", {}},
          {"betas", {}},
          {"eps", {}},
          {"weight_decay", {}},
          {"bias_correction", {}},
          {"eps_inside_sqrt", {}},
          {"max_coeff", {}},
          {"min_coeff", {}}}},
        {"Muon",
         {{"lr", {}},
          {"momentum", Value::of(0.95)},
          {"weight_decay", {}},
          {"muon_lr", {}},
          {"adam_lr", {}},
          {"betas", pair_of(0.9, 0.95)},
          {"eps", Value::of(1e-10)},
          {"ns_method", {}}}},
        {"Lion",
         {{"lr", Value::of(1e-4)},
          {"betas", pair_of(0.9, 0.99)},
          {"weight_decay", {}},
          {"set_grad_none", {}},
          {"fp32_optimizer_states", {}}}},
        {"Adagrad",
         {{"lr", Value::of(1e-2)},
          {"lr_decay", {}},
          {"eps", Value::of(1e-10)},
          {"weight_decay", {}},
          {"initial_accumulator_value", {}},
          {"fp32_optimizer_states", {}}}}};
  }();
  return types;
}

// Rules that torch's classes carry out on shards, with torch's defaults.
const std::map<std::string, Settings, std::less<>>& torch_types() {
  static const std::map<std::string, Settings, std::less<>> types = {
      {"Adadelta",
       {{"lr", Value::of(1.0)}, {"rho", {}}, {"eps", Value::of(1e-6)}, {"weight_decay", {}}}},
      {"Adamax", {{"lr", Value::of(2e-3)}, {"betas", {}}, {"eps", {}}, {"weight_decay", {}}}},
      {"ASGD",
       {{"lr", Value::of(1e-2)},
        {"lambd", {}},
        {"alpha", Value::of(0.75)},
        {"t0", {}},
        {"weight_decay", {}}}},
      {"NAdam",
       {{"lr", Value::of(2e-3)},
        {"betas", {}},
        {"eps", {}},
        {"weight_decay", {}},
        {"momentum_decay", {}},
        {"decoupled_weight_decay", {}}}},
      {"RAdam",
       {{"lr", {}},
        {"betas", {}},
        {"eps", {}},
        {"weight_decay", {}},
        {"decoupled_weight_decay", {}}}},
      {"RMSprop",
       {{"lr", Value::of(1e-2)},
        {"alpha", {}},
        {"eps", {}},
        {"weight_decay", {}},
        {"momentum", {}},
        {"centered", {}}}},
      {"Rprop", {{"lr", Value::of(1e-2)}, {"etas", {}}, {"step_sizes", {}}}}};
  return types;
}

}  // namespace

std::vector<std::string> known_optimizer_types() {
  return {"Adam",       "AdamW",    "SGD",       "Adagrad", "Lion",       "Lamb",
          "Muon",       "MuAdam",   "MuAdamW",   "MuSGD",   "OneBitAdam", "ZeroOneAdam",
          "OneBitLamb", "Adadelta", "Adafactor", "Adamax",  "ASGD",       "LBFGS",
          "NAdam",      "RAdam",    "RMSprop",   "Rprop",   "SparseAdam"};
}

bool is_available_optimizer(std::string_view type) {
  return core_types().count(type) > 0 || is_torch_optimizer(type);
}

bool is_torch_optimizer(std::string_view type) { return torch_types().count(type) > 0; }

bool takes_sixteen_bit_masters(std::string_view type) {
  return core_types().count(type) > 0 && type != "Lamb" && type != "Muon";
}

std::string sixteen_bit_masters_rule() {
  return "16-bit master weights (bf16.bf16_master_weights_and_grads, "
         "fp16.fp16_master_weights_and_grads) work with Adam, AdamW, SGD, Lion and Adagrad without "
         "amsgrad and maximize";
}

std::string unavailable_optimizer_reason(std::string_view type) {
  if (type == "Adafactor" || type == "SparseAdam" || type == "LBFGS") {
    return "its rule needs whole parameters, and shards hold pieces of them";
  }
  return "";
}

std::vector<OptimizerSetting> optimizer_settings(std::string_view type) {
  if (!is_available_optimizer(type)) {
    return {};
  }
  const auto& types = is_torch_optimizer(type) ? torch_types() : core_types();
  Settings settings = types.find(type)->second;
  for (const char* name :
       {"foreach", "fused", "capturable", "maximize", "differentiable", "max_grad_norm"}) {
    const bool listed = std::any_of(settings.begin(), settings.end(),
                                    [&](const auto& setting) { return setting.name == name; });
    const bool torch_only = std::string_view(name) == "capturable";
    const bool refused = (torch_only && !is_torch_optimizer(type)) ||
                         (std::string_view(name) == "maximize" &&
                          (type == "Lion" || type == "Lamb" || type == "Muon"));
    if (!listed && !refused) {
      settings.push_back({name, {}});
    }
  }
  return settings;
}

std::vector<std::string> optimizer_setting_names(std::string_view type) {
  std::vector<std::string> names;
  for (OptimizerSetting& setting : optimizer_settings(type)) {
    names.push_back(std::move(setting.name));
  }
  return names;
}

}  // namespace shardwise::config
