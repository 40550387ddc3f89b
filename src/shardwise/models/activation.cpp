#include "shardwise/models/activation.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>

namespace shardwise::models {
namespace {

using at::Tensor;

struct Named {
  const char* name;
  Activation function;
};

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

constexpr std::array kActivations{
    Named{"gelu", gelu},
    Named{"gelu_10", gelu_10},
    Named{"gelu_accurate", gelu_tanh},
    Named{"gelu_fast", gelu_fast},
    Named{"gelu_new", gelu_tanh},
    Named{"gelu_python", gelu},
    Named{"gelu_python_tanh", gelu_tanh},
    Named{"gelu_pytorch_tanh", gelu_tanh},
    Named{"hardswish", hardswish},
    Named{"laplace", laplace},
    Named{"leaky_relu", leaky_relu},
    Named{"linear", linear},
    Named{"mish", mish},
    Named{"quick_gelu", quick_gelu},
    Named{"relu", relu},
    Named{"relu2", relu2},
    Named{"relu6", relu6},
    Named{"sigmoid", sigmoid},
    Named{"silu", silu},
    Named{"sqrtsoftplus", sqrtsoftplus},
    Named{"swish", silu},
    Named{"tanh", tanh},
};

}  // namespace

Activation find_activation(std::string_view name) {
  for (const Named& entry : kActivations) {
    if (name == entry.name) {
      return entry.function;
    }
  }
  return nullptr;
}

std::string activation_names() {
  std::string names;
  for (const Named& entry : kActivations) {
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  return names;
}

}  // namespace shardwise::models
