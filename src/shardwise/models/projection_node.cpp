#include "shardwise/models/projection_node.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <numeric>

namespace shardwise::models {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

}  // namespace

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

ProjectionNode::ProjectionNode(const Result& x, const ProjectionWeights& weights)
    : source_(x.source()),
      input_first_(weights.input_first),
      with_bias_(!weights.biases.empty()),
      sizes_(x.value().sizes().vec()) {
  variable_list tensors{x.value()};
  for (const at::Tensor& matrix : weights.matrices) {
    matrices_.emplace_back(matrix, /*is_output=*/false);
    tensors.push_back(matrix);
    widths_.push_back(matrix.size(input_first_ ? 1 : 0));
  }
  tensors.insert(tensors.end(), weights.biases.begin(), weights.biases.end());
  set_next_edges(torch::autograd::collect_next_edges(tensors));
}

variable_list ProjectionNode::apply(variable_list&& gradients) {
  variable_list all(num_outputs());
  if (!gradients[0].defined()) {
    return all;
  }
  const at::Tensor gradient = rows_of(gradients[0]);
  gradients.clear();
  std::vector<at::Tensor> matrices;
  for (const auto& matrix : matrices_) {
    matrices.push_back(matrix.unpack());
  }
  differentiate(all, gradient, matrices);
  const std::size_t first_bias = 1 + matrices.size();
  if (with_bias_ && wanted(first_bias) > 0) {
    put(all, first_bias, [&](std::int64_t begin, std::int64_t width) {
      return gradient.narrow(1, begin, width).sum(0);
    });
  }
  return all;
}

void ProjectionNode::release_variables() {
  for (auto& matrix : matrices_) {
    matrix.reset_data();
  }
  if (source_) {
    source_->release();
  }
}

bool ProjectionNode::trains_matrices() const {
  for (std::size_t i = 1; i <= widths_.size(); ++i) {
    if (next_edge(i).is_valid()) {
      return true;
    }
  }
  return false;
}

std::size_t ProjectionNode::wanted(std::size_t begin) const {
  std::size_t sum = 0;
  for (std::size_t i = begin; i < begin + widths_.size(); ++i) {
    sum += task_should_compute_output(i) ? 1 : 0;
  }
  return sum;
}

bool ProjectionNode::hand_over(const params::Product& product) const {
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  if (at::GradMode::is_enabled() || asked == nullptr || !asked->empty() ||
      wanted_matrices() < widths_.size()) {
    return false;
  }
  std::vector<params::GradientSink*> sinks;
  for (std::size_t i = 1; i <= widths_.size(); ++i) {
    sinks.push_back(params::sole_sink(next_edge(i)));
    if (sinks.back() == nullptr) {
      return false;
    }
  }
  return sinks.front()->take_product(sinks, product);
}

void ProjectionNode::put(variable_list& all, std::size_t begin,
                         const PartGradient& function) const {
  const std::int64_t whole = std::accumulate(widths_.begin(), widths_.end(), std::int64_t{0});
  if (widths_.size() == 1) {
    all[begin] = function(0, whole);
    return;
  }
  if (wanted(begin) == widths_.size()) {
    const std::vector<at::Tensor> parts = function(0, whole).split_with_sizes(widths_, 0);
    std::copy(parts.begin(), parts.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
    return;
  }
  std::int64_t column = 0;
  for (std::size_t i = 0; i < widths_.size(); ++i) {
    if (task_should_compute_output(begin + i)) {
      all[begin + i] = function(column, widths_[i]);
    }
    column += widths_[i];
  }
}

}  // namespace shardwise::models
