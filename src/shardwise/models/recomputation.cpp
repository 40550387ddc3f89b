// Note [Recomputation in autograd]
// A node of ours stands for the whole computation. Its edges lead to the inputs and to the leaves,
// so gradients of parameters leave it as those of any other node, and whoever hooks AccumulateGrad
// sees them once. Inside, an autograd graph of its own lives from the recomputation to the end of
// apply(); torch::autograd::grad differentiates it. Where an engine alone takes the gradients of
// all leaves, it is a backward inside of the present one instead, in which the engine takes them,
// products as such, and they do not leave by the node. The first run records a graph too, which is
// dropped at once: some kernels (attention) are chosen by whether gradients are wanted, and a first
// run without them could give other bits.
//
// A projection needs its input x for the gradient of its matrix alone. Where x has a source the
// projection asks that for it. A node as above computes x at the first request of a backward and
// drops it at its own turn, which comes last, as x was made before its users. What a fused
// operation gave is computed from that operation's inputs again, without a node: its own backward
// does not need it.
#include "shardwise/models/recomputation.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>

#include "shardwise/params/gradient_sink.h"

namespace shardwise::models {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

at::Tensor random_state(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

// Sets the generator of a device to an earlier state for its lifetime; undefined: leaves it alone.
class EarlierRandomState {
 public:
  EarlierRandomState(at::Device device, const at::Tensor& state) : device_(device) {
    if (state.defined()) {
      present_ = random_state(device);
      set_random_state(device, state);
    }
  }
  ~EarlierRandomState() {
    if (present_.defined()) {
      set_random_state(device_, present_);
    }
  }
  EarlierRandomState(const EarlierRandomState&) = delete;
  EarlierRandomState& operator=(const EarlierRandomState&) = delete;

 private:
  at::Device device_;
  at::Tensor present_;
};

// See Note [Recomputation in autograd].
class Recomputation : public Node, public Source {
 public:
  Recomputation(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> leaves,
                Computation computation, bool random)
      : leaves_(std::move(leaves)),
        computation_(std::move(computation)),
        device_(inputs.front().device()),
        random_state_(random ? random_state(device_) : at::Tensor()) {
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
    }
    set_next_edges(torch::autograd::collect_next_edges(inputs, leaves_));
  }

  // The first run: a value that belongs to this node. The generator moves on.
  static at::Tensor first_value(const std::shared_ptr<Recomputation>& node) {
    at::Tensor value = node->run(/*record=*/false).detach();
    torch::autograd::create_gradient_edge(value, node);
    node->forget();
    return value;
  }

  // The value again, inside of a backward.
  at::Tensor value() override {
    const int task = torch::autograd::get_current_graph_task_id();
    if (!value_.defined() || task_ != task) {
      const EarlierRandomState state(device_, random_state_);
      value_ = run(/*record=*/at::GradMode::is_enabled());
      task_ = task;
    }
    return value_;
  }

  variable_list apply(variable_list&& gradients) override {
    variable_list all(num_outputs());
    if (!gradients[0].defined()) {
      return all;
    }
    const at::Tensor result = value();
    variable_list sources = std::move(present_);
    forget();
    sources.insert(sources.end(), leaves_.begin(), leaves_.end());
    const bool record = at::GradMode::is_enabled();
    if (!record && engine_takes_leaves()) {
      torch::autograd::backward({result}, {gradients[0]});
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        all[i] = sources[i].grad();
      }
      return all;
    }
    variable_list wanted;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (task_should_compute_output(i)) {
        wanted.push_back(sources[i]);
      }
    }
    variable_list found = torch::autograd::grad({result}, wanted, {gradients[0]}, record, record,
                                                /*allow_unused=*/true);
    auto next = found.begin();
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (task_should_compute_output(i)) {
        all[i] = std::move(*next++);
      }
    }
    return all;
  }

  void release_variables() override {
    for (SavedVariable& input : inputs_) {
      input.reset_data();
    }
    forget();
  }
  void release() override {}  // its own turn comes last
  std::string name() const override { return "ShardwiseRecomputationBackward"; }

 private:
  // `record`: the graph goes on to where the inputs came from, for gradients of gradients.
  at::Tensor run(bool record) {
    present_.clear();
    for (const SavedVariable& input : inputs_) {
      const at::Tensor whole = input.unpack();
      present_.push_back(record ? whole : whole.detach().requires_grad_(whole.requires_grad()));
    }
    const at::AutoGradMode with_gradients(true);
    return computation_(present_);
  }

  bool engine_takes_leaves() const {
    const auto* asked = torch::autograd::get_current_graph_task_exec_info();
    return asked != nullptr && asked->empty() &&
           std::all_of(next_edges().begin() + static_cast<std::ptrdiff_t>(inputs_.size()),
                       next_edges().end(), [](const torch::autograd::Edge& edge) {
                         return !edge.is_valid() || params::sole_sink(edge) != nullptr;
                       });
  }

  void forget() {
    value_ = at::Tensor();
    present_.clear();
  }

  std::vector<SavedVariable> inputs_;
  std::vector<at::Tensor> leaves_;
  Computation computation_;
  at::Device device_;
  at::Tensor random_state_;  // undefined: draws nothing
  at::Tensor value_;         // in the backward `task_`, between the first request and apply()
  variable_list present_;    // the inputs that value_ was computed from
  int task_ = -1;
};

// See remade().
class Remade : public Source {
 public:
  Remade(const std::vector<at::Tensor>& inputs, Computation computation)
      : computation_(std::move(computation)) {
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
    }
  }
  at::Tensor value() override {
    variable_list present;
    for (const SavedVariable& input : inputs_) {
      present.push_back(input.unpack());
    }
    return computation_(present);
  }
  void release() override {
    for (SavedVariable& input : inputs_) {
      input.reset_data();
    }
  }

 private:
  std::vector<SavedVariable> inputs_;
  Computation computation_;
};

bool recorded(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& leaves) {
  return at::GradMode::is_enabled() && (torch::autograd::any_variable_requires_grad(inputs) ||
                                        torch::autograd::any_variable_requires_grad(leaves));
}

}  // namespace

Result recomputed(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& leaves,
                  Computation computation, bool random) {
  if (!recorded(inputs, leaves)) {
    return computation(inputs);
  }
  const std::shared_ptr<Recomputation> node(
      new Recomputation(inputs, leaves, std::move(computation), random),
      torch::autograd::deleteNode);
  return {Recomputation::first_value(node), node};
}

Result remade(at::Tensor value, const std::vector<at::Tensor>& inputs, Computation computation) {
  if (!recorded(inputs, {})) {
    return value;
  }
  return {std::move(value), std::make_shared<Remade>(inputs, std::move(computation))};
}

}  // namespace shardwise::models
