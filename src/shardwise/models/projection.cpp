// Note [One product for several parameters]
// Parameters that are used together are neighbours in their unit's flat buffer, so a view over all
// of them is a matrix without a copy. Autograd knows nothing of it: the node has an edge to every
// parameter, and hands each its rows of the one gradient, or the product to who keeps gradients.
// The view is made anew at every use, since a sharded unit's memory comes and goes, and it is not
// made at all where the parameters lie apart: outside of an engine, with a frozen one among them,
// or where alignment leaves a gap.
#include "shardwise/models/projection.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "shardwise/base/check.h"
#include "shardwise/params/gradient_sink.h"

namespace shardwise::models {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// [in, out], as products from the left take it.
at::Tensor as_factor(const at::Tensor& matrix, bool input_first) {
  return input_first ? matrix : matrix.t();
}

std::vector<std::int64_t> widths_of(const std::vector<at::Tensor>& matrices, bool input_first) {
  std::vector<std::int64_t> widths;
  for (const at::Tensor& matrix : matrices) {
    widths.push_back(matrix.size(input_first ? 1 : 0));
  }
  return widths;
}

// out [rows, width] = x [rows, in] · matrix + bias.
void multiply(at::Tensor out, const at::Tensor& x, const at::Tensor& factor,
              const at::Tensor& bias) {
  if (bias.defined()) {
    at::addmm_out(out, bias, x, factor);
  } else {
    at::mm_out(out, x, factor);
  }
}

at::Tensor product(const at::Tensor& x, const ProjectionWeights& weights) {
  const bool with_bias = !weights.biases.empty();
  const std::vector<std::int64_t> widths = widths_of(weights.matrices, weights.input_first);
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = 0;
  for (const std::int64_t width : widths) {
    sizes.back() += width;
  }
  const at::Tensor result = at::empty(sizes, x.options());
  const at::Tensor rows = rows_of(x), out = rows_of(result);
  const at::Tensor matrix = side_by_side(weights.matrices);
  const at::Tensor bias = with_bias ? side_by_side(weights.biases) : at::Tensor();
  if (matrix.defined() && (bias.defined() || !with_bias)) {
    multiply(out, rows, as_factor(matrix, weights.input_first), bias);
    return result;
  }
  const std::vector<at::Tensor> parts = out.split_with_sizes(widths, 1);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    multiply(parts[i], rows, as_factor(weights.matrices[i], weights.input_first),
             with_bias ? weights.biases[i] : at::Tensor());
  }
  return result;
}

// Null where the gradient has no taker, or where others look at it too.
params::GradientSink* sink_of(const torch::autograd::Edge& edge) {
  Node* node = edge.function.get();
  const bool alone = node != nullptr && node->pre_hooks().size() == 1 &&
                     node->tensor_pre_hooks().empty() && node->post_hooks().empty() &&
                     node->tensor_post_acc_grad_hooks() == nullptr;
  return alone ? dynamic_cast<params::GradientSink*>(node->pre_hooks().front().get()) : nullptr;
}

// See Note [One product for several parameters]. Outputs: x, the matrices, the biases.
class Projection : public Node {
 public:
  Projection(const Result& x, const ProjectionWeights& weights)
      : source_(x.source()),
        input_first_(weights.input_first),
        with_bias_(!weights.biases.empty()),
        sizes_(x.value().sizes().vec()) {
    variable_list tensors{x.value()};
    for (const at::Tensor& matrix : weights.matrices) {
      matrices_.emplace_back(matrix, /*is_output=*/false);
      tensors.push_back(matrix);
    }
    tensors.insert(tensors.end(), weights.biases.begin(), weights.biases.end());
    set_next_edges(torch::autograd::collect_next_edges(tensors));
    if (!source_ && any_edge(1, weights.matrices.size())) {
      x_ = SavedVariable(x.value(), /*is_output=*/false);
    }
  }

  variable_list apply(variable_list&& gradients) override {
    variable_list all(num_outputs());
    if (!gradients[0].defined()) {
      return all;
    }
    const at::Tensor gradient = rows_of(gradients[0]);
    gradients.clear();
    std::vector<at::Tensor> matrices;
    for (const SavedVariable& matrix : matrices_) {
      matrices.push_back(matrix.unpack());
    }
    const std::vector<std::int64_t> widths = widths_of(matrices, input_first_);
    if (task_should_compute_output(0)) {
      all[0] = input_gradient(gradient, matrices, widths);
    }
    const std::size_t count = matrices.size();
    matrix_gradients(all, gradient, widths);
    if (with_bias_ && wanted(1 + count, count) > 0) {
      put(all, 1 + count, widths, [](const at::Tensor& part) { return part.sum(0); }, gradient);
    }
    return all;
  }

  void release_variables() override {
    x_.reset_data();
    for (SavedVariable& matrix : matrices_) {
      matrix.reset_data();
    }
    if (source_) {
      source_->release();
    }
  }
  std::string name() const override { return "ShardwiseProjectionBackward"; }

 private:
  bool any_edge(std::size_t begin, std::size_t count) const {
    for (std::size_t i = begin; i < begin + count; ++i) {
      if (next_edge(i).is_valid()) {
        return true;
      }
    }
    return false;
  }

  std::size_t wanted(std::size_t begin, std::size_t count) const {
    std::size_t sum = 0;
    for (std::size_t i = begin; i < begin + count; ++i) {
      sum += task_should_compute_output(i) ? 1 : 0;
    }
    return sum;
  }

  at::Tensor input_gradient(const at::Tensor& gradient, const std::vector<at::Tensor>& matrices,
                            const std::vector<std::int64_t>& widths) const {
    // Where this is recorded the parameters themselves must be in the graph.
    const at::Tensor matrix =
        at::GradMode::is_enabled() && matrices.size() > 1 ? at::Tensor() : side_by_side(matrices);
    if (matrix.defined()) {
      const at::Tensor& factor = at::GradMode::is_enabled() ? matrices[0] : matrix;
      return gradient.mm(as_factor(factor, input_first_).t()).view(sizes_);
    }
    const std::vector<at::Tensor> parts = gradient.split_with_sizes(widths, 1);
    at::Tensor sum;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor factor = as_factor(matrices[i], input_first_).t();
      sum = sum.defined() ? at::addmm(sum, parts[i], factor) : parts[i].mm(factor);
    }
    return sum.view(sizes_);
  }

  void matrix_gradients(variable_list& all, const at::Tensor& gradient,
                        const std::vector<std::int64_t>& widths) const {
    const std::size_t count = wanted(1, widths.size());
    if (count == 0) {
      return;
    }
    const at::Tensor x = rows_of(source_ ? source_->value() : x_.unpack());
    const auto factors = [&](const at::Tensor& part) {
      return input_first_ ? std::pair(x.t(), part) : std::pair(part.t(), x);
    };
    if (count == widths.size() && handed_over(count, factors(gradient))) {
      return;
    }
    const auto product = [&](const at::Tensor& part) {
      const auto [left, right] = factors(part);
      return left.mm(right);
    };
    put(all, 1, widths, product, gradient);
  }

  // Whoever holds the gradients of the matrices may carry the product out in their place. Not where
  // somebody asked autograd for them.
  bool handed_over(std::size_t count, const std::pair<at::Tensor, at::Tensor>& factors) const {
    const auto* asked = torch::autograd::get_current_graph_task_exec_info();
    if (at::GradMode::is_enabled() || asked == nullptr || !asked->empty()) {
      return false;
    }
    for (std::size_t i = 2; i <= count; ++i) {
      if (sink_of(next_edge(i)) == nullptr) {
        return false;
      }
    }
    params::GradientSink* sink = sink_of(next_edge(1));
    return sink != nullptr && sink->take_product(count, factors.first, factors.second);
  }

  // The gradients from `begin` on of parameters with these widths: function(gradient) in one where
  // all are wanted, for each part of the gradient otherwise.
  template <typename Function>
  void put(variable_list& all, std::size_t begin, const std::vector<std::int64_t>& widths,
           const Function& function, const at::Tensor& gradient) const {
    if (widths.size() == 1) {
      all[begin] = function(gradient);
      return;
    }
    if (wanted(begin, widths.size()) == widths.size()) {
      const std::vector<at::Tensor> parts = function(gradient).split_with_sizes(widths, 0);
      std::copy(parts.begin(), parts.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
      return;
    }
    const std::vector<at::Tensor> parts = gradient.split_with_sizes(widths, 1);
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (task_should_compute_output(begin + i)) {
        all[begin + i] = function(parts[i]);
      }
    }
  }

  std::vector<SavedVariable> matrices_;
  SavedVariable x_;  // unless it has a source or no matrix needs a gradient
  std::shared_ptr<Source> source_;
  bool input_first_, with_bias_;
  std::vector<std::int64_t> sizes_;  // of x
};

}  // namespace

at::Tensor side_by_side(const std::vector<at::Tensor>& parts) {
  const at::Tensor& first = parts.front();
  if (parts.size() == 1) {
    return first.detach();
  }
  std::int64_t end = first.storage_offset();
  std::vector<std::int64_t> sizes = first.sizes().vec();
  sizes[0] = 0;
  for (const at::Tensor& part : parts) {
    const bool follows = part.is_contiguous() && part.scalar_type() == first.scalar_type() &&
                         part.storage().is_alias_of(first.storage()) &&
                         part.storage_offset() == end &&
                         part.sizes().slice(1) == first.sizes().slice(1);
    if (!follows) {
      return {};
    }
    end += part.numel();
    sizes[0] += part.size(0);
  }
  return first.detach().as_strided(sizes, first.strides(), first.storage_offset());
}

at::Tensor projected(const Result& x, const ProjectionWeights& weights) {
  SW_CHECK(weights.matrices.size() == 1 || !weights.input_first);
  variable_list tensors = weights.matrices;
  tensors.insert(tensors.end(), weights.biases.begin(), weights.biases.end());
  tensors.push_back(x.value());
  const bool recorded =
      at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(tensors);
  at::Tensor result;
  {
    const at::NoGradGuard without_graph;
    result = product(x.value(), weights);
  }
  if (recorded) {
    const std::shared_ptr<Node> node(new Projection(x, weights), torch::autograd::deleteNode);
    torch::autograd::create_gradient_edge(result, node);
  }
  return result;
}

}  // namespace shardwise::models
