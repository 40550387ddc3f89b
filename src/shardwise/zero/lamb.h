// LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes",
// Algorithm 2) over shards, with the details of DeepSpeed's FusedLamb:
//   m = β1·m + (1−β1)·g;   v = β2·v + (1−β2)·g²
//   u = m / (√v + eps) + wd·p,  or m / √(v + eps) + wd·p with eps inside
//   p −= lr · √(1−β2^t) / (1−β1^t) · clamp(‖p‖ / ‖u‖, min_coeff, max_coeff) · u
// The norms are of whole parameters; the ratio is 1 where one of them is 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/comm/channel.h"
#include "shardwise/optim/update_rule.h"

namespace shardwise::zero {

// This rank's part of one parameter that moves. All tensors fp32 of one shape on one device.
struct LambPiece {
  at::Tensor master, exp_avg, exp_avg_sq, gradient;
  optim::LambGroup group;
  int parameter = -1;  // index among the trainable ones
  int step = 1;        // the parameter's own, 1 in its first update
};

// Two passes over the pieces with one all-gather of the squared norms of all `parameters` between
// them; collective, with every rank's pieces. `channel` null: every rank holds whole parameters.
// The communication uses memory of `device`; the host waits for it.
void lamb_update(const std::vector<LambPiece>& pieces, int parameters, comm::Channel* channel,
                 at::Device device);

}  // namespace shardwise::zero
