#include "shardwise/config/optimizer_types.h"

namespace shardwise::config {

std::vector<std::string> known_optimizer_types() {
  return {"Adam",       "AdamW",    "SGD",       "Adagrad", "Lion",       "Lamb",
          "Muon",       "MuAdam",   "MuAdamW",   "MuSGD",   "OneBitAdam", "ZeroOneAdam",
          "OneBitLamb", "Adadelta", "Adafactor", "Adamax",  "ASGD",       "LBFGS",
          "NAdam",      "RAdam",    "RMSprop",   "Rprop",   "SparseAdam"};
}

bool is_available_optimizer(std::string_view type) {
  return type == "Adam" || type == "AdamW" || type == "SGD";
}

std::vector<std::string> optimizer_settings(std::string_view type) {
  const std::vector<std::string> torch_switches = {"foreach", "fused", "maximize", "differentiable",
                                                   "max_grad_norm"};
  std::vector<std::string> names;
  if (type == "SGD") {
    names = {"lr", "momentum", "dampening", "weight_decay", "nesterov"};
  } else {
    names = {"lr",          "betas",      "eps",     "weight_decay",  "bias_correction",
             "adam_w_mode", "torch_adam", "amsgrad", "set_grad_none", "fp32_optimizer_states",
             "capturable"};
  }
  names.insert(names.end(), torch_switches.begin(), torch_switches.end());
  return names;
}

}  // namespace shardwise::config
