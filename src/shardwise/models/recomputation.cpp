// Note [Recomputation in autograd]
// A node of ours stands for the whole computation. Its edges lead to the inputs and to the leaves,
// so gradients of parameters leave it as those of any other node, and whoever hooks AccumulateGrad
// sees them once. Inside, an autograd graph of its own lives from the recomputation to the end of
// apply(); torch::autograd::grad differentiates it. The first run records a graph too, which is
// dropped at once: some kernels (attention) are chosen by whether gradients are wanted, and a first
// run without them could give other bits.
//
// A projection needs its input x for the gradient of its matrix alone. Where x is such a result the
// projection asks the node for it, which computes it at the first request of a backward and drops
// it at its own turn. That turn comes last, as x was made before its users.
#include "shardwise/models/recomputation.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>

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

}  // namespace

// See Note [Recomputation in autograd].
class Recomputation : public Node {
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
  const at::Tensor& value() {
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
    variable_list wanted;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (task_should_compute_output(i)) {
        wanted.push_back(sources[i]);
      }
    }
    const bool record = at::GradMode::is_enabled();
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

namespace {

// Of x [rows, in] times matrix [in, out] plus bias [out]; without x.
class Projection : public Node {
 public:
  Projection(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias,
             std::shared_ptr<Recomputation> source)
      : matrix_(matrix, /*is_output=*/false), source_(std::move(source)) {
    set_next_edges(torch::autograd::collect_next_edges(x, matrix, bias));
  }

  // The formulas of torch's addmm, with its choice of layout: the same bits.
  variable_list apply(variable_list&& gradients) override {
    const at::Tensor& gradient = gradients[0];
    variable_list all(num_outputs());
    if (!gradient.defined()) {
      return all;
    }
    const at::Tensor matrix = matrix_.unpack();
    if (task_should_compute_output(0)) {
      all[0] = gradient.mm(matrix.t());
    }
    if (task_should_compute_output(1)) {
      const at::Tensor x = source_->value().flatten(0, 1);
      const bool by_columns = matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0);
      all[1] = by_columns ? gradient.t().mm(x).t() : x.t().mm(gradient);
    }
    if (task_should_compute_output(2)) {
      all[2] = gradient.sum(0);
    }
    return all;
  }

  void release_variables() override { matrix_.reset_data(); }
  std::string name() const override { return "ShardwiseProjectionBackward"; }

 private:
  SavedVariable matrix_;
  std::shared_ptr<Recomputation> source_;
};

}  // namespace

Result recomputed(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& leaves,
                  Computation computation, bool random) {
  const bool wanted = torch::autograd::any_variable_requires_grad(inputs) ||
                      torch::autograd::any_variable_requires_grad(leaves);
  if (!at::GradMode::is_enabled() || !wanted) {
    return computation(inputs);
  }
  const std::shared_ptr<Recomputation> node(
      new Recomputation(inputs, leaves, std::move(computation), random),
      torch::autograd::deleteNode);
  return {Recomputation::first_value(node), node};
}

at::Tensor projected(const Result& x, const at::Tensor& matrix, const at::Tensor& bias) {
  const auto rows = [](const at::Tensor& tensor) { return tensor.flatten(0, 1); };
  const auto product = [&] {
    return bias.defined() ? at::addmm(bias, rows(x.value()), matrix)
                          : at::mm(rows(x.value()), matrix);
  };
  at::Tensor result;
  if (x.source() && at::GradMode::is_enabled()) {
    const std::shared_ptr<Projection> node(
        new Projection(rows(x.value()), matrix, bias, x.source()), torch::autograd::deleteNode);
    {
      const at::NoGradGuard without_graph;
      result = product();
    }
    torch::autograd::create_gradient_edge(result, node);
  } else {
    result = product();
  }
  return result.unflatten(0, {x.value().size(0), x.value().size(1)});
}

}  // namespace shardwise::models
