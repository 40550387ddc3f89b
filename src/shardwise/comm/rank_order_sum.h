// The one arithmetic of reductions on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "shardwise/comm/transport.h"

namespace shardwise::comm {

// out [n] = (accumulate ? out : 0) + scale × Σ_r pieces[r] [n], summed in fp32 in rank order and
// rounded once to out's dtype. `pieces` is [world × n]. fp64 is summed in fp64.
void sum_in_rank_order(const at::Tensor& out, const at::Tensor& pieces, int world,
                       const Reduction& reduction);

// The same bytes as a flat uint8 tensor.
at::Tensor as_bytes(const at::Tensor& tensor);

}  // namespace shardwise::comm
