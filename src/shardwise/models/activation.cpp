#include "shardwise/models/activation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shardwise::models {
namespace {

using at::Tensor;

Tensor gelu(const Tensor& x) { return at::gelu(x); }
Tensor gelu_tanh(const Tensor& x) { return at::gelu(x, "tanh"); }
Tensor gelu_10(const Tensor& x) { return at::clamp(at::gelu(x), -10, 10); }
// The square root of 2 / pi in it is rounded to 10 digits.
Tensor gelu_fast(const Tensor& x) {
  return 0.5 * x * (1.0 + at::tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)));
}
Tensor quick_gelu(const Tensor& x) { return x * at::sigmoid(1.702 * x); }
Tensor silu(const Tensor& x) { return at::silu(x); }
Tensor relu(const Tensor& x) { return at::relu(x); }
Tensor relu2(const Tensor& x) { return at::square(at::relu(x)); }
Tensor relu6(const Tensor& x) { return at::hardtanh(x, 0, 6); }
Tensor leaky_relu(const Tensor& x) { return at::leaky_relu(x); }
Tensor sigmoid(const Tensor& x) { return at::sigmoid(x); }
Tensor tanh(const Tensor& x) { return at::tanh(x); }
Tensor mish(const Tensor& x) { return at::mish(x); }
Tensor hardswish(const Tensor& x) { return at::hardswish(x); }
Tensor linear(const Tensor& x) { return x; }
Tensor sqrtsoftplus(const Tensor& x) { return at::sqrt(at::softplus(x)); }
// Ma et al. 2022 (MEGA), https://arxiv.org/abs/2209.10655, equation 15.
Tensor laplace(const Tensor& x) {
  return 0.5 * (1.0 + at::erf((x - 0.707107) / (0.282095 * std::sqrt(2.0))));
}

// In the order of the names.
constexpr std::array<Activation, kActivationNames.size()> kFunctions{
    gelu,      gelu_10, gelu_tanh,  gelu_fast,    gelu_tanh, gelu,       gelu_tanh, gelu_tanh,
    hardswish, laplace, leaky_relu, linear,       mish,      quick_gelu, relu,      relu2,
    relu6,     sigmoid, silu,       sqrtsoftplus, silu,      tanh};
static_assert(kFunctions.back() != nullptr);

}  // namespace

Activation find_activation(std::string_view name) {
  const auto found = std::find(kActivationNames.begin(), kActivationNames.end(), name);
  return found == kActivationNames.end()
             ? nullptr
             : kFunctions[static_cast<std::size_t>(found - kActivationNames.begin())];
}

std::string_view fused_activation(std::string_view name) {
  const Activation function = find_activation(name);
  return function == &silu        ? "silu"
         : function == &gelu      ? "gelu"
         : function == &gelu_tanh ? "gelu_tanh"
                                  : "";
}

}  // namespace shardwise::models
