// What a layered model tells about its units while it computes. Models know this interface only;
// the engine acts behind it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise::params {

class UnitEvents {
 public:
  virtual ~UnitEvents() = default;
  // A forward pass over the whole model begins.
  virtual void begin_pass() = 0;
  // Before a unit computes: its parameters can be read from here on. `inputs`: those of its input
  // tensors that require grad. Returns what the unit is to use in their place; empty: the inputs
  // themselves.
  virtual std::vector<at::Tensor> before_forward(int unit,
                                                 const std::vector<at::Tensor>& inputs) = 0;
  // After it, with its output tensors.
  virtual void after_forward(int unit, const std::vector<at::Tensor>& outputs) = 0;
};

}  // namespace shardwise::params
