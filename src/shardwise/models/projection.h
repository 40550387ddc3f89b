// Products of activations with the weights of a layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shardwise/models/recomputation.h"
#include "shardwise/ops/float8.h"

namespace shardwise::models {

// Weights that one input is multiplied with, whose results lie side by side: q, k and v, or gate
// and up. Parameters of their own, each with its own gradient.
struct ProjectionWeights {
  std::vector<at::Tensor> matrices;  // [out, in] each; input_first: a single one, [in, out]
  std::vector<at::Tensor> biases;    // [out] for each matrix, or none at all
  bool input_first = false;          // GPT-2's layout
};

// x [batch, seq, in] times all matrices plus biases: [batch, seq, sum of out], contiguous. It is
// one product, forward and backward, where the matrices lie one behind the other in memory, as
// neighbours in a unit's flat buffer do, and so do the biases; elsewhere one for each matrix. For
// the gradients of the matrices backward computes x again where it has a source, and keeps it
// otherwise. Gradients of gradients work.
//
// With `fp8` the product and both of its backward run in fp8 where ops::fits_float8 holds for all
// matrices: as one product wherever they lie, with x kept in fp8. UsageError unless all is bf16,
// and for gradients of gradients. See Note [Products in fp8].
at::Tensor projected(const Result& x, const ProjectionWeights& weights,
                     ops::Float8Recipe fp8 = ops::Float8Recipe::kOff);

// `parts` as one tensor over the same memory, without a gradient; undefined where they do not lie
// one behind the other (contiguous, one dtype, the same sizes but for the first).
at::Tensor side_by_side(const std::vector<at::Tensor>& parts);

}  // namespace shardwise::models
