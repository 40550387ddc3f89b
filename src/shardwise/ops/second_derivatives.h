// Gradients that can be differentiated again, for ops whose own backward is a kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>

namespace shardwise::ops {

// Whether the backward that runs on this thread records its own graph (create_graph=True).
bool backward_is_recorded();

// The gradients of `inputs` for a `gradient` of composed(inputs), which is the op made of
// operations with derivatives of their own; undefined for inputs that need none. Costs memory and
// time like an unfused op, so backward calls it only where its graph is recorded.
torch::autograd::variable_list recorded_gradients(
    const torch::autograd::variable_list& inputs, const at::Tensor& gradient,
    const std::function<at::Tensor(const torch::autograd::variable_list&)>& composed);

}  // namespace shardwise::ops
