#include "shardwise/ops/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "shardwise/base/check.h"
#include "shardwise/kernels/norm.h"
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

struct NormFunction : torch::autograd::Function<NormFunction> {
  // The output and, with a residual, the sum.
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const OptionalTensor& residual, const OptionalTensor& weight,
                               const OptionalTensor& bias, double epsilon, bool centred) {
    auto [output, sum, mean, rstd] = call_op("shardwise::norm_forward", &norm_forward, x, residual,
                                             weight, bias, epsilon, centred);
    context->set_materialize_grads(false);
    context->save_for_backward({residual ? sum : x, value_or_undefined(weight), mean, rstd});
    context->saved_data["centred"] = centred;
    context->saved_data["residual"] = residual.has_value();
    context->saved_data["weight_gradient"] = weight && weight->requires_grad();
    context->saved_data["bias_gradient"] = bias && bias->requires_grad();
    context->saved_data["bias"] = bias.has_value();
    return residual ? variable_list{output, sum} : variable_list{output};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const bool residual = context->saved_data["residual"].toBool();
    const bool weight_gradient = context->saved_data["weight_gradient"].toBool();
    const bool bias_gradient = context->saved_data["bias_gradient"].toBool();
    const OptionalTensor of_sum = residual ? optional_of(gradients[1]) : std::nullopt;
    if (!gradients[0].defined()) {  // only the sum was used
      const Tensor all = value_or_undefined(of_sum);
      return {all, residual ? all : Tensor(), {}, {}, {}, {}};
    }
    const variable_list saved = context->get_saved_variables();
    const auto [input, weight, bias] =
        call_op("shardwise::norm_backward", &norm_backward, gradients[0], of_sum, saved[0],
                optional_of(saved[1]), saved[2], saved[3], context->saved_data["centred"].toBool(),
                weight_gradient, bias_gradient);
    return {input,
            residual ? input : Tensor(),
            weight_gradient ? weight : Tensor(),
            bias_gradient ? bias : Tensor(),
            {},
            {}};
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
  return NormFunction::apply(x, OptionalTensor(), weight, OptionalTensor(), epsilon, false)[0];
}

Tensor layer_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                  double epsilon) {
  return NormFunction::apply(x, OptionalTensor(), weight, bias, epsilon, true)[0];
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                        const OptionalTensor& weight, double epsilon) {
  const variable_list both =
      NormFunction::apply(x, OptionalTensor(residual), weight, OptionalTensor(), epsilon, false);
  return {both[0], both[1]};
}

std::tuple<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                          const OptionalTensor& weight, const OptionalTensor& bias,
                                          double epsilon) {
  const variable_list both =
      NormFunction::apply(x, OptionalTensor(residual), weight, bias, epsilon, true);
  return {both[0], both[1]};
}

}  // namespace shardwise::ops
