#include "shardwise/ops/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "shardwise/base/check.h"
#include "shardwise/kernels/norm.h"
#include "shardwise/ops/second_derivatives.h"
#include "shardwise/ops/tensor_place.h"

namespace shardwise::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "norm";

void check_weight(const OptionalTensor& weight, const Tensor& x, const char* argument) {
  if (!weight) {
    return;
  }
  check_device(*weight, x, kName, argument);
  SW_USER_CHECK(UsageError, weight->dim() == 1 && weight->size(0) == x.size(-1), kName, ": ",
                argument, " of shape ", weight->sizes(), " does not fit rows of ", x.size(-1),
                " elements; it must be [", x.size(-1), "]");
  const bool fits = weight->scalar_type() == x.scalar_type() || weight->scalar_type() == at::kFloat;
  SW_USER_CHECK(UsageError, fits, kName, ": ", argument, " is ", weight->scalar_type(), ", x is ",
                x.scalar_type(), "; ", argument, " must have the dtype of x or float32");
}

void check_same(const OptionalTensor& other, const Tensor& x, const char* argument) {
  if (!other) {
    return;
  }
  check_device(*other, x, kName, argument);
  SW_USER_CHECK(UsageError, other->sizes() == x.sizes() && other->scalar_type() == x.scalar_type(),
                kName, ": ", argument, " is ", other->scalar_type(), other->sizes(), ", but x is ",
                x.scalar_type(), x.sizes(), "; they must be the same");
}

kernels::NormShape shape_of(const Tensor& x, const OptionalTensor& weight, double epsilon,
                            bool centred) {
  SW_USER_CHECK(UsageError, x.dim() >= 1 && x.size(-1) >= 1 && x.size(-1) <= kernels::kMaxNormWidth,
                kName, ": rows must have 1 to ", kernels::kMaxNormWidth, " elements; x has shape ",
                x.sizes());
  const kernels::DType dtype = dtype_of(x, kName);
  return {.centred = centred,
          .rows = x.numel() / x.size(-1),
          .width = x.size(-1),
          .epsilon = epsilon,
          .dtype = dtype,
          .weight_dtype = weight ? dtype_of(*weight, kName) : dtype};
}

Tensor statistics(const Tensor& x, bool wanted) {
  const at::TensorOptions options = x.options().dtype(at::kFloat);
  if (!wanted) {
    return at::empty({0}, options);
  }
  return at::empty_symint(x.sym_sizes().slice(0, x.dim() - 1), options);
}

// What else a norm gives besides its output.
enum class Beside {
  kNothing,
  kSum,  // of x and the residual
  kInput
};

// The norm made of operations with derivatives of their own; inputs: x, weight, bias.
Tensor composed_norm(const variable_list& inputs, double epsilon, bool centred) {
  const at::ScalarType dtype = inputs[0].scalar_type();
  const Tensor x = dtype == at::kDouble ? inputs[0] : inputs[0].to(at::kFloat);
  const Tensor rows = centred ? x - x.mean(-1, /*keepdim=*/true) : x;
  const Tensor variance = at::square(rows).mean(-1, /*keepdim=*/true);
  Tensor output = rows * at::rsqrt(variance + epsilon);
  if (inputs[1].defined()) {
    output = output * inputs[1];
  }
  if (inputs[2].defined()) {
    output = output + inputs[2];
  }
  return output.to(dtype);
}

struct NormFunction : torch::autograd::Function<NormFunction> {
  // The output and what is beside it.
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const OptionalTensor& residual, const OptionalTensor& weight,
                               const OptionalTensor& bias, double epsilon, bool centred,
                               Beside beside) {
    auto [output, sum, mean, rstd] = call_op("shardwise::norm_forward", &norm_forward, x, residual,
                                             weight, bias, epsilon, centred);
    context->set_materialize_grads(false);
    context->save_for_backward(
        {residual ? sum : x, value_or_undefined(weight), value_or_undefined(bias), mean, rstd});
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["centred"] = centred;
    context->saved_data["beside"] = static_cast<std::int64_t>(beside);
    context->saved_data["weight_gradient"] = weight && weight->requires_grad();
    context->saved_data["bias_gradient"] = bias && bias->requires_grad();
    switch (beside) {
      case Beside::kNothing: break;
      case Beside::kSum: return {output, sum};
      case Beside::kInput: return {output, x};
    }
    return {output};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto beside = static_cast<Beside>(context->saved_data["beside"].toInt());
    const OptionalTensor other =
        beside == Beside::kNothing ? std::nullopt : optional_of(gradients[1]);
    const auto answer = [&](const Tensor& input, const Tensor& weight, const Tensor& bias) {
      return variable_list{input, beside == Beside::kSum ? input : Tensor(), weight, bias, {}, {},
                           {}};
    };
    if (!gradients[0].defined()) {  // only what is beside was used
      return answer(value_or_undefined(other), {}, {});
    }
    const variable_list saved = context->get_saved_variables();
    const bool centred = context->saved_data["centred"].toBool();
    if (backward_is_recorded()) {
      const double epsilon = context->saved_data["epsilon"].toDouble();
      const variable_list found = recorded_gradients(
          {saved[0], saved[1], saved[2]}, gradients[0],
          [&](const variable_list& inputs) { return composed_norm(inputs, epsilon, centred); });
      const Tensor input = found[0].defined() && other ? found[0] + *other : found[0];
      return answer(input, found[1], found[2]);
    }
    const bool weight_gradient = context->saved_data["weight_gradient"].toBool();
    const bool bias_gradient = context->saved_data["bias_gradient"].toBool();
    const auto [input, weight, bias] =
        call_op("shardwise::norm_backward", &norm_backward, gradients[0], other, saved[0],
                optional_of(saved[1]), saved[3], saved[4], centred, weight_gradient, bias_gradient);
    return answer(input, weight_gradient ? weight : Tensor(), bias_gradient ? bias : Tensor());
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> norm_forward_shapes(const Tensor& x,
                                                               const OptionalTensor& residual,
                                                               const OptionalTensor&,
                                                               const OptionalTensor&, double,
                                                               bool centred) {
  const Tensor none = at::empty({0}, x.options());
  const auto like = [&] { return at::empty_symint(x.sym_sizes(), x.options()); };
  return {like(), residual ? like() : none, statistics(x, centred), statistics(x, true)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> norm_forward(const Tensor& x,
                                                        const OptionalTensor& residual,
                                                        const OptionalTensor& weight,
                                                        const OptionalTensor& bias, double epsilon,
                                                        bool centred) {
  check_same(residual, x, "residual");
  const kernels::NormShape shape = shape_of(x, weight ? weight : bias, epsilon, centred);
  check_weight(weight, x, "weight");
  check_weight(bias, x, "bias");
  SW_USER_CHECK(UsageError, !weight || !bias || weight->scalar_type() == bias->scalar_type(), kName,
                ": weight and bias must have one dtype");
  const c10::DeviceGuard guard(x.device());
  auto results = norm_forward_shapes(x, residual, weight, bias, epsilon, centred);
  auto& [output, sum, mean, rstd] = results;
  const Tensor input = x.contiguous();
  const OptionalTensor more = contiguous(residual);
  const OptionalTensor scale = contiguous(weight);
  const OptionalTensor offset = contiguous(bias);
  kernels::norm_forward(place_of(x), shape,
                        {.input = pointer(input),
                         .residual = pointer(more),
                         .weight = pointer(scale),
                         .bias = pointer(offset),
                         .sum = pointer(sum),
                         .output = pointer(output),
                         .mean = static_cast<float*>(pointer(mean)),
                         .rstd = static_cast<float*>(pointer(rstd))});
  return results;
}

std::tuple<Tensor, Tensor, Tensor> norm_backward_shapes(const Tensor&, const OptionalTensor&,
                                                        const Tensor& x,
                                                        const OptionalTensor& weight, const Tensor&,
                                                        const Tensor&, bool, bool weight_gradient,
                                                        bool bias_gradient) {
  const at::TensorOptions options = weight ? weight->options() : x.options();
  const auto row = [&](bool wanted) {
    return wanted ? at::empty_symint({x.sym_size(-1)}, options) : at::empty({0}, options);
  };
  return {at::empty_symint(x.sym_sizes(), x.options()), row(weight_gradient), row(bias_gradient)};
}

std::tuple<Tensor, Tensor, Tensor> norm_backward(const Tensor& output_gradient,
                                                 const OptionalTensor& sum_gradient,
                                                 const Tensor& x, const OptionalTensor& weight,
                                                 const Tensor& mean, const Tensor& rstd,
                                                 bool centred, bool weight_gradient,
                                                 bool bias_gradient) {
  check_same(output_gradient, x, "the output's gradient");
  check_same(sum_gradient, x, "the sum's gradient");
  const kernels::NormShape shape = shape_of(x, weight, 0.0, centred);
  const c10::DeviceGuard guard(x.device());
  auto results = norm_backward_shapes(output_gradient, sum_gradient, x, weight, mean, rstd, centred,
                                      weight_gradient, bias_gradient);
  const auto& [input, of_weight, of_bias] = results;
  const kernels::Place place = place_of(x);
  const std::int64_t count =
      weight_gradient || bias_gradient ? kernels::norm_partials(place, shape) : 0;
  const Tensor partials = at::empty({count}, x.options().dtype(at::kFloat));
  const Tensor rows = x.contiguous();
  const Tensor gradient = output_gradient.contiguous();
  const OptionalTensor other = contiguous(sum_gradient);
  const OptionalTensor scale = contiguous(weight);
  kernels::norm_backward(place, shape,
                         {.output_gradient = pointer(gradient),
                          .sum_gradient = pointer(other),
                          .x = pointer(rows),
                          .weight = pointer(scale),
                          .mean = static_cast<const float*>(pointer(mean)),
                          .rstd = static_cast<const float*>(pointer(rstd)),
                          .input_gradient = pointer(input),
                          .weight_gradient = pointer(of_weight),
                          .bias_gradient = pointer(of_bias),
                          .partials = static_cast<float*>(pointer(partials))});
  return results;
}

Tensor rms_norm(const Tensor& x, const OptionalTensor& weight, double epsilon) {
  return NormFunction::apply(x, OptionalTensor(), weight, OptionalTensor(), epsilon, false,
                             Beside::kNothing)[0];
}

Tensor layer_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                  double epsilon) {
  return NormFunction::apply(x, OptionalTensor(), weight, bias, epsilon, true, Beside::kNothing)[0];
}

std::tuple<Tensor, Tensor> rms_norm_beside(const Tensor& x, const OptionalTensor& weight,
                                           double epsilon) {
  const variable_list both = NormFunction::apply(x, OptionalTensor(), weight, OptionalTensor(),
                                                 epsilon, false, Beside::kInput);
  return {both[0], both[1]};
}

std::tuple<Tensor, Tensor> layer_norm_beside(const Tensor& x, const OptionalTensor& weight,
                                             const OptionalTensor& bias, double epsilon) {
  const variable_list both =
      NormFunction::apply(x, OptionalTensor(), weight, bias, epsilon, true, Beside::kInput);
  return {both[0], both[1]};
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                        const OptionalTensor& weight, double epsilon) {
  const variable_list both = NormFunction::apply(x, OptionalTensor(residual), weight,
                                                 OptionalTensor(), epsilon, false, Beside::kSum);
  return {both[0], both[1]};
}

std::tuple<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                          const OptionalTensor& weight, const OptionalTensor& bias,
                                          double epsilon) {
  const variable_list both =
      NormFunction::apply(x, OptionalTensor(residual), weight, bias, epsilon, true, Beside::kSum);
  return {both[0], both[1]};
}

}  // namespace shardwise::ops
