// The connection to torch's autograd: where a unit's backward begins and ends, and where its
// gradients appear. See Note [Unit boundaries in autograd] in autograd_hooks.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "shardwise/device/launch_point.h"
#include "shardwise/params/gradient_sink.h"
#include "shardwise/params/registry.h"

namespace torch::autograd {
struct Node;
}

namespace shardwise::zero {

// What happens to units during backward. Called on autograd's threads, without Python's lock.
class BackwardEvents : public device::LaunchWaiter {
 public:
  // A gradient is about to flow into the unit.
  virtual void before_backward(int unit) = 0;
  // All gradients of one pass through the unit have been made.
  virtual void after_backward(int unit) = 0;
  // One gradient of a parameter, by its index in the registry.
  virtual void gradient(int parameter, const at::Tensor& gradient) = 0;
  // The same of some parameters as a product: see params::GradientSink.
  virtual bool product(const std::vector<int>& parameters, const params::Product& product) = 0;
  // Passes through the unit whose backward is still to come.
  virtual void add_pending(int unit, int change) = 0;
};

// Graphs may outlive the engine; its hooks then do nothing.
using WeakEvents = std::weak_ptr<BackwardEvents>;

// A hook on the AccumulateGrad node of a parameter that requires grad: its gradients go to the
// events and `.grad` is not touched by torch. Keep the node that is returned; dropping it ends
// this.
std::shared_ptr<torch::autograd::Node> install_gradient_hook(const at::Tensor& tensor,
                                                             int parameter,
                                                             const WeakEvents& events);

// Puts a node between `inputs` (all require grad) and the unit: returns detached tensors to hand to
// the unit instead. Its backward is the unit's end. `counted`: made outside of backward.
std::vector<at::Tensor> mark_inputs(const std::vector<at::Tensor>& inputs, int unit, bool counted,
                                    const WeakEvents& events);

// Announces the unit's backward from its outputs.
void mark_outputs(const std::vector<at::Tensor>& outputs, int unit, const WeakEvents& events);

// Number of the backward that runs on this thread; -1 outside of backward.
int backward_task();
inline bool inside_backward() { return backward_task() != -1; }

// Calls `finish` once, when the present backward has ended without an error.
void on_backward_end(std::function<void()> finish);

}  // namespace shardwise::zero
