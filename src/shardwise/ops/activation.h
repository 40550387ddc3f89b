// Activation functions of a feed-forward layer (formulas and source: kernels/activation.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace shardwise::ops {

// name: "silu", "gelu" (with erf) or "gelu_tanh".
// x: [..., width] gives f(x); gated, x: [..., 2 · width] gives f(first half) · second half, the
// product of a fused gate and up projection: SwiGLU, GeGLU. Backward recomputes from x.
at::Tensor activation(const at::Tensor& x, std::string_view name, bool gated);

// What it is made of; no autograd.
at::Tensor activation_forward(const at::Tensor& x, std::string_view name, bool gated);
at::Tensor activation_backward(const at::Tensor& x, const at::Tensor& gradient,
                               std::string_view name, bool gated);
at::Tensor activation_forward_shapes(const at::Tensor& x, std::string_view name, bool gated);
at::Tensor activation_backward_shapes(const at::Tensor& x, const at::Tensor& gradient,
                                      std::string_view name, bool gated);

}  // namespace shardwise::ops
