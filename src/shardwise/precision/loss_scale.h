// Which dtype is trained in, and how the loss is scaled, from the configuration.
#pragma once

#include <c10/core/ScalarType.h>

#include "shardwise/config/config.h"
#include "shardwise/kernels/boundary.h"

namespace shardwise::precision {

// "fp32", "fp16", "bf16" → torch's dtype.
at::ScalarType dtype_of(const std::string& name);

// fp16: DeepSpeed's dynamic or static scale; bf16 and fp32: a constant 1.
kernels::LossScaleRule loss_scale_rule(const config::Config& config);

}  // namespace shardwise::precision
