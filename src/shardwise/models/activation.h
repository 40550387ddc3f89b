// Activation functions by their Hugging Face names.
#pragma once

#include <string>
#include <string_view>

namespace at {
class Tensor;
}

namespace shardwise::models {

// Element by element; any floating dtype, differentiable.
using Activation = at::Tensor (*)(const at::Tensor&);

// Null for a name there is none for. Source of names and formulas: transformers, activations.py;
// all of its functions without weights.
Activation find_activation(std::string_view name);
// "gelu, gelu_10, ...", for messages.
std::string activation_names();

}  // namespace shardwise::models
