#include "shardwise/optim/configured_rule.h"

#include "shardwise/base/check.h"
#include "shardwise/config/optimizer_types.h"

namespace shardwise::optim {
namespace {

GroupValues adam_values(const config::OptimizerConfig& optimizer) {
  const config::OptimizerParams& params = optimizer.params;
  return {{"lr", params.lr},
          {"beta1", params.betas[0]},
          {"beta2", params.betas[1]},
          {"eps", params.eps},
          {"weight_decay", params.weight_decay},
          {"decoupled_weight_decay", optimizer.type == "AdamW" || params.adam_w_mode},
          {"bias_correction", params.bias_correction}};
}

GroupValues matrix_values(const config::OptimizerParams& params) {
  const MuonGroup standard;
  return {{"use_muon", 1},
          {"lr", params.muon_lr},
          {"weight_decay", params.weight_decay},
          {"momentum", params.momentum},
          {"nesterov", standard.nesterov},
          {"ns_steps", standard.ns_steps},
          {"ns_a", standard.ns_coefficients[0]},
          {"ns_b", standard.ns_coefficients[1]},
          {"ns_c", standard.ns_coefficients[2]},
          {"eps", standard.eps},
          {"match_rms_adamw", standard.match_rms_adamw},
          {"gram", params.ns_method == "gram"}};
}

}  // namespace

bool needs_torch(const config::OptimizerConfig& optimizer) {
  return config::is_torch_optimizer(optimizer.type) || optimizer.params.amsgrad ||
         optimizer.params.maximize;
}

ConfiguredRule configured_rule(const config::OptimizerConfig& optimizer) {
  const config::OptimizerParams& params = optimizer.params;
  if (optimizer.type.empty()) {
    return {};
  }
  SW_CHECK(!needs_torch(optimizer), optimizer.type);
  if (optimizer.type == "SGD") {
    return {.rule = {.name = "sgd", .with_momentum = params.momentum != 0},
            .values = {{"lr", params.lr},
                       {"momentum", params.momentum},
                       {"dampening", params.dampening},
                       {"weight_decay", params.weight_decay},
                       {"nesterov", params.nesterov}}};
  }
  if (optimizer.type == "Lion") {
    return {.rule = {.name = "lion"},
            .values = {{"lr", params.lr},
                       {"beta1", params.betas[0]},
                       {"beta2", params.betas[1]},
                       {"weight_decay", params.weight_decay}}};
  }
  if (optimizer.type == "Lamb") {
    GroupValues values = adam_values(optimizer);
    values.erase("decoupled_weight_decay");
    values["max_coeff"] = params.max_coeff;
    values["min_coeff"] = params.min_coeff;
    values["eps_inside_sqrt"] = params.eps_inside_sqrt;
    return {.rule = {.name = kLambRule}, .values = values};
  }
  if (optimizer.type == "Muon") {
    return {.rule = {.name = kMuonRule},
            .values = {{"use_muon", 0},
                       {"lr", params.adam_lr},
                       {"beta1", params.betas[0]},
                       {"beta2", params.betas[1]},
                       {"eps", params.eps},
                       {"weight_decay", params.weight_decay}},
            .matrix_values = matrix_values(params)};
  }
  if (optimizer.type == "Adagrad") {
    return {.rule = {.name = "adagrad", .initial_state = params.initial_accumulator_value},
            .values = {{"lr", params.lr},
                       {"lr_decay", params.lr_decay},
                       {"eps", params.eps},
                       {"weight_decay", params.weight_decay}}};
  }
  SW_CHECK(optimizer.type == "Adam" || optimizer.type == "AdamW", optimizer.type);
  return {.rule = {.name = "adam"}, .values = adam_values(optimizer)};
}

}  // namespace shardwise::optim
