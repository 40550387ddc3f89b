// Activation functions by their Hugging Face names.
#pragma once

#include <array>
#include <string_view>

namespace at {
class Tensor;
}

namespace shardwise::models {

// Element by element; any floating dtype, differentiable.
using Activation = at::Tensor (*)(const at::Tensor&);

// Source of names and formulas: transformers, activations.py; all of its functions without weights.
inline constexpr std::array<std::string_view, 22> kActivationNames{"gelu",
                                                                   "gelu_10",
                                                                   "gelu_accurate",
                                                                   "gelu_fast",
                                                                   "gelu_new",
                                                                   "gelu_python",
                                                                   "gelu_python_tanh",
                                                                   "gelu_pytorch_tanh",
                                                                   "hardswish",
                                                                   "laplace",
                                                                   "leaky_relu",
                                                                   "linear",
                                                                   "mish",
                                                                   "quick_gelu",
                                                                   "relu",
                                                                   "relu2",
                                                                   "relu6",
                                                                   "sigmoid",
                                                                   "silu",
                                                                   "sqrtsoftplus",
                                                                   "swish",
                                                                   "tanh"};

// Null for a name that is not listed.
Activation find_activation(std::string_view name);

// The name of the function in ops::activation; empty where it is not among those.
std::string_view fused_activation(std::string_view name);

}  // namespace shardwise::models
