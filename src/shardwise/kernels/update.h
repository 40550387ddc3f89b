// The fused update of one optimizer step: gradients in, master weights, moments and the 16-bit copy
// out, in one pass over memory.
#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/kernels/types.h"

namespace shardwise::kernels {

// One parameter group of Adam (Kingma, Ba 2015) or, with decoupled decay, AdamW (Loshchilov, Hutter
// 2019, Algorithm 2). Order of operations as in torch.optim:
//   g = gradient · multiplier;   decoupled: p *= 1 − lr·wd,  else g += wd·p
//   m = lerp(m, g, 1−β1);  v = v·β2 + (1−β2)·g²
//   p −= (lr / (1−β1^t)) · m / (√v / √(1−β2^t) + eps),  t = the parameter's own step count
// state[0]: first moment m, state[1]: second moment v. Scalars are prepared in double, elements are
// fp32.
struct AdamGroup {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled_decay = true;
  bool bias_correction = true;
};

// One parameter group of SGD as torch.optim.SGD computes it:
//   g = gradient · multiplier + wd·p;   b = first step ? g : momentum·b + (1−dampening)·g
//   p −= lr · (nesterov ? g + momentum·b : b)
// With momentum 0 the buffer b, state[0], is not touched and may be null.
struct SgdGroup {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
};

// One parameter group of Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms",
// Algorithm 2):
//   g = gradient · multiplier;   p *= 1 − lr·wd
//   p −= lr · sign(β1·m + (1−β1)·g);   m = β2·m + (1−β2)·g
// state[0]: m. The sign of 0 is 0, that of NaN is NaN.
struct LionGroup {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;
};

// One parameter group of Adagrad (Duchi, Hazan, Singer 2011) as torch.optim.Adagrad computes it:
//   g = gradient · multiplier + wd·p;   s += g²
//   p −= lr / (1 + (t−1)·lr_decay) · g / (√s + eps),  t = the parameter's own step count
// state[0]: s.
struct AdagradGroup {
  double lr = 1e-2;
  double lr_decay = 0.0;
  double eps = 1e-10;
  double weight_decay = 0.0;
};

// Made by finish_boundary (boundary.h), read by the update where it runs: nothing waits for the
// host.
struct StepDecision {
  float gradient_multiplier = 1.0F;  // unscaling × averaging × clipping
  std::int32_t apply = 1;            // 0: the update writes nothing
};

// Updates every chunk whose parameter is active, by the rule that the group belongs to. Chunks of
// inactive parameters or without a group, memory outside the chunks, and everything when
// decision->apply is 0 stay untouched. 16-bit masters and states are read as fp32 and, like the
// parameter copy, rounded to nearest even when written; is_served (types.h) must hold for every
// segment. `groups` is host memory and read before return. `active` [parameters] of 0/1 may be
// null: all active. `step` [parameters] is each parameter's own step count, already incremented: 1
// in its first update. All of decision, active and step are memory of the place.
// Defined for the four groups above.
template <typename Group>
void update(const Place& place, const ChunkTable& table, const std::vector<Group>& groups,
            const StepDecision* decision, const std::uint8_t* active, const std::int32_t* step);

// partials[i] = Σ gradient² over chunk i, in double, in an order that depends on the chunk's length
// only (CUDA has another order than the CPU). A NaN or an infinity makes the partial non-finite,
// and nothing else does. Only `gradient` of the segments is used.
void sum_of_squares(const Place& place, const ChunkTable& table, double* partials);

}  // namespace shardwise::kernels
