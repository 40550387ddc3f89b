// Rows of a table of embeddings.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardwise::ops {

// weight: [vocabulary, width]; ids: int64, any shape; the result is [..., width]. The rows'
// gradients are summed in fp32 in the order of the tokens and rounded once, the same in every run;
// those of token `padding` are left out (−1: none).
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids, std::int64_t padding);

// The gradient of a table of `vocabulary` rows; no autograd.
at::Tensor embedding_backward(const at::Tensor& gradient, const at::Tensor& ids,
                              c10::SymInt vocabulary, std::int64_t padding);
at::Tensor embedding_backward_shapes(const at::Tensor& gradient, const at::Tensor& ids,
                                     c10::SymInt vocabulary, std::int64_t padding);

}  // namespace shardwise::ops
