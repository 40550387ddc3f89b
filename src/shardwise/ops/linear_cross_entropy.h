// The head of a language model and its loss in one: logits exist for a chunk of rows at a time
// only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

namespace shardwise::ops {

struct LossOptions {
  // fp32, the shape of targets, no gradient; none: 1
  std::optional<at::Tensor> token_weights = std::nullopt;
  std::int64_t ignore_index = -100;
  double label_smoothing = 0.0;
  double z_loss = 0.0;  // adds z_loss · log²Z for each row
  // true: divides by the number of targets that count (with token_weights by their sum), false: a
  // sum
  bool mean = true;
  // The factor that backward will probably bring, such as loss scale / accumulation steps.
  // Gradients are made with it in forward; another one costs a pass over them. Choose it so that
  // 16-bit gradients neither overflow nor vanish.
  double announced_factor = 1.0;
  // Times this, where the device alone knows a part of it: fp32, one number, no gradient.
  std::optional<at::Tensor> announced_scale = std::nullopt;
  std::int64_t chunk_rows = 0;  // rows whose logits exist at a time; 0: some 2^29 logits
};

// The loss of softmax(hidden · weightᵀ) against targets (formula: kernels/cross_entropy.h), a
// scalar in fp32 (fp64 for fp64). hidden: [..., width]; weight: [vocabulary, width] of the same
// dtype; targets: int64 [...]. Where gradients are wanted they are computed in forward: that of
// hidden in its dtype, that of the weight summed over chunks in fp32 and rounded once. A target
// that is neither ignore_index nor a token is an error on the CPU and makes the loss NaN on CUDA.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, const LossOptions& options);

// What it is made of; no autograd. (loss, gradient of hidden, of the weight), both times the
// announced factor and scale; one that is not asked for has no elements.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
    const std::optional<at::Tensor>& token_weights, std::int64_t ignore_index,
    double label_smoothing, double z_loss, bool mean, double announced_factor,
    const std::optional<at::Tensor>& announced_scale, std::int64_t chunk_rows, bool hidden_gradient,
    bool weight_gradient);
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward_shapes(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
    const std::optional<at::Tensor>& token_weights, std::int64_t ignore_index,
    double label_smoothing, double z_loss, bool mean, double announced_factor,
    const std::optional<at::Tensor>& announced_scale, std::int64_t chunk_rows, bool hidden_gradient,
    bool weight_gradient);

// x *= factor (fp32, one number); where it is 1 nothing is read or written.
void rescale(const at::Tensor& x, const at::Tensor& factor);

// linear_cross_entropy with the arguments of the registered op; reduction: "mean" or "sum".
at::Tensor linear_cross_entropy_op(const at::Tensor& hidden, const at::Tensor& weight,
                                   const at::Tensor& targets,
                                   const std::optional<at::Tensor>& token_weights,
                                   std::int64_t ignore_index, double label_smoothing, double z_loss,
                                   std::string_view reduction, double announced_factor,
                                   std::int64_t chunk_rows);

}  // namespace shardwise::ops
