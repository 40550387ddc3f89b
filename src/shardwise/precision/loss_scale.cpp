#include "shardwise/precision/loss_scale.h"

#include <cmath>

#include "shardwise/base/check.h"

namespace shardwise::precision {

at::ScalarType dtype_of(const std::string& name) {
  if (name == "fp32") {
    return at::kFloat;
  }
  if (name == "fp16") {
    return at::kHalf;
  }
  SW_CHECK_EQ(name, "bf16");
  return at::kBFloat16;
}

kernels::LossScaleRule loss_scale_rule(const config::Config& config) {
  kernels::LossScaleRule rule;
  const config::Fp16Config& fp16 = config.fp16;
  if (!config.scales_loss()) {
    return rule;
  }
  rule.dynamic = fp16.loss_scale == 0;
  rule.initial_scale = rule.dynamic ? std::exp2(fp16.initial_scale_power) : fp16.loss_scale;
  rule.min_scale = fp16.min_loss_scale;
  rule.window = fp16.loss_scale_window;
  rule.hysteresis = fp16.hysteresis;
  rule.consecutive_hysteresis = fp16.consecutive_hysteresis;
  return rule;
}

}  // namespace shardwise::precision
