#include "shardwise/optim/configured_rule.h"

#include "shardwise/base/check.h"

namespace shardwise::optim {

ConfiguredRule configured_rule(const config::OptimizerConfig& optimizer) {
  const config::OptimizerParams& params = optimizer.params;
  if (optimizer.type.empty()) {
    return {};
  }
  if (optimizer.type == "SGD") {
    return {.rule = "sgd",
            .with_momentum = params.momentum != 0,
            .values = {{"lr", params.lr},
                       {"momentum", params.momentum},
                       {"dampening", params.dampening},
                       {"weight_decay", params.weight_decay},
                       {"nesterov", params.nesterov}}};
  }
  SW_CHECK(optimizer.type == "Adam" || optimizer.type == "AdamW", optimizer.type);
  return {.rule = "adam",
          .values = {{"lr", params.lr},
                     {"beta1", params.betas[0]},
                     {"beta2", params.betas[1]},
                     {"eps", params.eps},
                     {"weight_decay", params.weight_decay},
                     {"decoupled", optimizer.type == "AdamW" || params.adam_w_mode},
                     {"bias_correction", params.bias_correction}}};
}

}  // namespace shardwise::optim
