// RMSNorm and LayerNorm over the last dimension (formulas and sources: kernels/norm.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace shardwise::ops {

// x, residual: [..., width], width up to 16384; weight, bias: [width] of x's dtype or fp32, none: 1
// and 0. Results have the shape and dtype of x. Differentiable in all tensors, twice where backward
// is recorded.
at::Tensor rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight, double epsilon);
at::Tensor layer_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double epsilon);

// (norm of x, x): where x has another use, as the residual has, take it from here and backward adds
// that gradient in the pass of the norm instead of another one.
std::tuple<at::Tensor, at::Tensor> rms_norm_beside(const at::Tensor& x,
                                                   const std::optional<at::Tensor>& weight,
                                                   double epsilon);
std::tuple<at::Tensor, at::Tensor> layer_norm_beside(const at::Tensor& x,
                                                     const std::optional<at::Tensor>& weight,
                                                     const std::optional<at::Tensor>& bias,
                                                     double epsilon);

// (norm of x + residual, x + residual) in one pass over memory; backward too is one pass.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const std::optional<at::Tensor>& weight,
                                                double epsilon);
std::tuple<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& residual,
                                                  const std::optional<at::Tensor>& weight,
                                                  const std::optional<at::Tensor>& bias,
                                                  double epsilon);

// What the above are made of; no autograd. An output that is not asked for has no elements.
// (output, sum, mean, rstd); sum only with a residual, mean only if centred.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward(
    const at::Tensor& x, const std::optional<at::Tensor>& residual,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias, double epsilon,
    bool centred);
// (gradient of x and of the residual, of the weight, of the bias); x: what was normalised.
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward(
    const at::Tensor& output_gradient, const std::optional<at::Tensor>& sum_gradient,
    const at::Tensor& x, const std::optional<at::Tensor>& weight, const at::Tensor& mean,
    const at::Tensor& rstd, bool centred, bool weight_gradient, bool bias_gradient);

// Shapes only.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward_shapes(
    const at::Tensor& x, const std::optional<at::Tensor>& residual,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias, double epsilon,
    bool centred);
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward_shapes(
    const at::Tensor& output_gradient, const std::optional<at::Tensor>& sum_gradient,
    const at::Tensor& x, const std::optional<at::Tensor>& weight, const at::Tensor& mean,
    const at::Tensor& rstd, bool centred, bool weight_gradient, bool bias_gradient);

}  // namespace shardwise::ops
