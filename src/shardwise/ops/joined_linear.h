// Several linear layers of one input as one product: q, k and v; gate and up.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace shardwise::ops {

// x: [..., in]; weights: one to three of [out_i, in] of x's dtype; biases: none, or one of [out_i]
// for each. The result is [..., sum of out_i], the layers' outputs side by side. Weights that are
// neighbours in one storage, as in a flat unit, are multiplied as the one matrix that they are;
// others one by one into their columns. The gradient of the weights is one product either way.
at::Tensor joined_linear(const at::Tensor& x, at::TensorList weights, at::TensorList biases);

// What it is made of; no autograd.
at::Tensor joined_linear_forward(const at::Tensor& x, at::TensorList weights,
                                 at::TensorList biases);
at::Tensor joined_linear_forward_shapes(const at::Tensor& x, at::TensorList weights,
                                        at::TensorList biases);
// The gradient of x.
at::Tensor joined_linear_backward_input(const at::Tensor& gradient, at::TensorList weights);
at::Tensor joined_linear_backward_input_shapes(const at::Tensor& gradient, at::TensorList weights);

}  // namespace shardwise::ops
