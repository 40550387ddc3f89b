#include "shardwise/ops/second_derivatives.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace shardwise::ops {

using torch::autograd::variable_list;

bool backward_is_recorded() { return at::GradMode::is_enabled(); }

variable_list recorded_gradients(const variable_list& inputs, const at::Tensor& gradient,
                                 const std::function<at::Tensor(const variable_list&)>& composed) {
  // Under names of their own: an input may depend on another one (a tied head), and what flows that
  // way is not this op's.
  variable_list named, wanted;
  for (const at::Tensor& input : inputs) {
    const bool needed = input.defined() && input.requires_grad();
    named.push_back(needed ? at::alias(input) : input);
    if (needed) {
      wanted.push_back(named.back());
    }
  }
  const variable_list found =
      torch::autograd::grad({composed(named)}, wanted, {gradient}, /*retain_graph=*/true,
                            /*create_graph=*/true, /*allow_unused=*/true);
  variable_list all;
  auto next = found.begin();
  for (const at::Tensor& input : inputs) {
    all.push_back(input.defined() && input.requires_grad() ? *next++ : at::Tensor());
  }
  return all;
}

}  // namespace shardwise::ops
