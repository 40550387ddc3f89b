// Note [Unit boundaries in autograd]
// Begin of a unit's backward: a pre-hook on the nodes that made its outputs. It runs before the
// first gradient enters the unit, on whatever path. End: not by counting gradients, because a
// parameter may get none. Instead the unit's inputs are detached and re-attached through a node of
// ours. All of the unit's own nodes lie behind it in autograd's order, so when the node's apply()
// runs, the unit's gradients are done and the unit before has not been asked for yet. Gradients: a
// pre-hook on AccumulateGrad that takes the gradient and passes on an undefined tensor, which
// AccumulateGrad skips. set_post_accumulate_grad_hook is not used: it has one slot, which a user's
// own hook would take from us silently.
#include "shardwise/zero/autograd_hooks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace shardwise::zero {
namespace {

using torch::autograd::FunctionPreHook;
using torch::autograd::Node;
using torch::autograd::variable_list;

class BeforeBackward : public FunctionPreHook {
 public:
  BeforeBackward(WeakEvents events, int unit) : events_(std::move(events)), unit_(unit) {}
  variable_list operator()(const variable_list& gradients) override {
    if (const auto events = events_.lock()) {
      events->before_backward(unit_);
    }
    return gradients;
  }

 private:
  WeakEvents events_;
  int unit_;
};

class TakeGradient : public params::GradientSink {
 public:
  TakeGradient(WeakEvents events, int parameter)
      : events_(std::move(events)), parameter_(parameter) {}
  variable_list operator()(const variable_list& gradients) override {
    const auto events = events_.lock();
    if (!events || !gradients[0].defined()) {
      return gradients;
    }
    events->gradient(parameter_, gradients[0]);
    return {at::Tensor()};
  }
  bool take_product(const std::vector<GradientSink*>& sinks,
                    const params::Product& product) override {
    const auto events = events_.lock();
    std::vector<int> parameters;
    for (const GradientSink* sink : sinks) {
      const auto* one = dynamic_cast<const TakeGradient*>(sink);
      if (!events || one == nullptr || one->events_.lock() != events) {
        return false;
      }
      parameters.push_back(one->parameter_);
    }
    return events->product(parameters, product);
  }

 private:
  WeakEvents events_;
  int parameter_;
};

class AfterBackward : public Node {
 public:
  AfterBackward(WeakEvents events, int unit, bool counted)
      : events_(std::move(events)), unit_(unit), counted_(counted) {
    count(1);
  }
  ~AfterBackward() override { count(-1); }

  variable_list apply(variable_list&& gradients) override {
    count(-1);
    counted_ = false;
    if (const auto events = events_.lock()) {
      events->after_backward(unit_);
    }
    return std::move(gradients);
  }
  std::string name() const override { return "ShardwiseUnitBackward"; }

 private:
  void count(int change) {
    if (counted_) {
      if (const auto events = events_.lock()) {
        events->add_pending(unit_, change);
      }
    }
  }

  WeakEvents events_;
  int unit_;
  bool counted_;
};

}  // namespace

std::shared_ptr<Node> install_gradient_hook(const at::Tensor& tensor, int parameter,
                                            const WeakEvents& events) {
  auto accumulator = torch::autograd::impl::grad_accumulator(tensor);
  accumulator->add_pre_hook(std::make_unique<TakeGradient>(events, parameter));
  return accumulator;
}

std::vector<at::Tensor> mark_inputs(const std::vector<at::Tensor>& inputs, int unit, bool counted,
                                    const WeakEvents& events) {
  const std::shared_ptr<AfterBackward> node(new AfterBackward(events, unit, counted),
                                            torch::autograd::deleteNode);
  torch::autograd::edge_list edges;
  std::vector<at::Tensor> marked;
  for (const at::Tensor& input : inputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(input));
    marked.push_back(input.detach());
    torch::autograd::create_gradient_edge(marked.back(), node);
  }
  node->set_next_edges(std::move(edges));
  return marked;
}

void mark_outputs(const std::vector<at::Tensor>& outputs, int unit, const WeakEvents& events) {
  std::vector<Node*> seen;
  for (const at::Tensor& output : outputs) {
    const auto node = output.requires_grad() ? output.grad_fn() : nullptr;
    if (node && std::find(seen.begin(), seen.end(), node.get()) == seen.end()) {
      seen.push_back(node.get());
      node->add_tensor_pre_hook(std::make_unique<BeforeBackward>(events, unit));
    }
  }
}

int backward_task() { return torch::autograd::get_current_graph_task_id(); }

void on_backward_end(std::function<void()> finish) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(finish));
}

}  // namespace shardwise::zero
