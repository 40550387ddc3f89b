#include "shardwise/ops/activation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "shardwise/base/check.h"
#include "shardwise/kernels/activation.h"
#include "shardwise/ops/second_derivatives.h"
#include "shardwise/ops/tensor_place.h"

namespace shardwise::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "activation";

kernels::ActivationKind kind_of(std::string_view name) {
  if (name == "silu") {
    return kernels::ActivationKind::kSilu;
  }
  if (name == "gelu") {
    return kernels::ActivationKind::kGelu;
  }
  SW_USER_CHECK(UsageError, name == "gelu_tanh", kName, ": no function is called \"", name,
                "\"; there are silu, gelu and gelu_tanh");
  return kernels::ActivationKind::kGeluTanh;
}

kernels::ActivationShape shape_of(const Tensor& x, std::string_view name, bool gated) {
  SW_USER_CHECK(UsageError, x.dim() >= 1 && (!gated || x.size(-1) % 2 == 0), kName, ": x of shape ",
                x.sizes(), " has no two halves; gated, it must be [..., 2 x width]");
  const std::int64_t width = x.size(-1) / (gated ? 2 : 1);
  return {.kind = kind_of(name),
          .gated = gated,
          .dtype = dtype_of(x, kName),
          .rows = width == 0 ? 0 : x.numel() / x.size(-1),
          .width = width};
}

// The op made of operations with derivatives of their own.
Tensor composed_activation(const Tensor& x, std::string_view name, bool gated) {
  const auto function = [&](const Tensor& gate) {
    return name == "silu" ? at::silu(gate) : at::gelu(gate, name == "gelu" ? "none" : "tanh");
  };
  if (!gated) {
    return function(x);
  }
  const std::vector<Tensor> halves = x.chunk(2, -1);
  return function(halves[0]) * halves[1];
}

struct ActivationFunction : torch::autograd::Function<ActivationFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const std::string& name,
                        bool gated) {
    context->save_for_backward({x});
    context->saved_data["name"] = name;
    context->saved_data["gated"] = gated;
    return call_op("shardwise::activation_forward", &activation_forward, x, name, gated);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Tensor x = context->get_saved_variables()[0];
    const std::string& name = context->saved_data["name"].toStringRef();
    const bool gated = context->saved_data["gated"].toBool();
    if (backward_is_recorded()) {
      const variable_list found = recorded_gradients(
          {x}, gradients[0],
          [&](const variable_list& inputs) { return composed_activation(inputs[0], name, gated); });
      return {found[0], {}, {}};
    }
    return {call_op("shardwise::activation_backward", &activation_backward, x, gradients[0], name,
                    gated),
            {},
            {}};
  }
};

}  // namespace

Tensor activation_forward_shapes(const Tensor& x, std::string_view, bool gated) {
  c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  if (gated) {
    sizes.back() = sizes.back() / 2;
  }
  return at::empty_symint(sizes, x.options());
}

Tensor activation_forward(const Tensor& x, std::string_view name, bool gated) {
  const kernels::ActivationShape shape = shape_of(x, name, gated);
  const c10::DeviceGuard guard(x.device());
  const Tensor input = x.contiguous();
  const Tensor output = activation_forward_shapes(x, name, gated);
  kernels::activation_forward(place_of(x), shape, pointer(input), pointer(output));
  return output;
}

Tensor activation_backward_shapes(const Tensor& x, const Tensor&, std::string_view, bool) {
  return at::empty_symint(x.sym_sizes(), x.options());
}

Tensor activation_backward(const Tensor& x, const Tensor& gradient, std::string_view name,
                           bool gated) {
  const kernels::ActivationShape shape = shape_of(x, name, gated);
  SW_USER_CHECK(UsageError,
                gradient.numel() == shape.rows * shape.width &&
                    gradient.scalar_type() == x.scalar_type() && gradient.device() == x.device(),
                kName, ": the gradient is ", gradient.scalar_type(), gradient.sizes(),
                ", which does not fit x, ", x.scalar_type(), x.sizes());
  const c10::DeviceGuard guard(x.device());
  const Tensor input = x.contiguous();
  const Tensor given = gradient.contiguous();
  const Tensor result = activation_backward_shapes(x, gradient, name, gated);
  kernels::activation_backward(place_of(x), shape, pointer(input), pointer(given), pointer(result));
  return result;
}

Tensor activation(const Tensor& x, std::string_view name, bool gated) {
  return ActivationFunction::apply(x, std::string(name), gated);
}

}  // namespace shardwise::ops
