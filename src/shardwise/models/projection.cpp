// Note [One product for several parameters]
// Parameters that are used together are neighbours in their unit's flat buffer, so a view over all
// of them is a matrix without a copy. Autograd knows nothing of it: the node has an edge to every
// parameter, and hands each its rows of the one gradient, or the product to who keeps gradients.
// The view is made anew at every use, since a sharded unit's memory comes and goes, and it is not
// made at all where the parameters lie apart: outside of an engine, with a frozen one among them,
// or where alignment leaves a gap.
#include "shardwise/models/projection.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/models/float8_projection.h"
#include "shardwise/models/projection_node.h"

namespace shardwise::models {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// [in, out], as products from the left take it.
at::Tensor as_factor(const at::Tensor& matrix, bool input_first) {
  return input_first ? matrix : matrix.t();
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
  std::vector<std::int64_t> widths;
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = 0;
  for (const at::Tensor& matrix : weights.matrices) {
    widths.push_back(matrix.size(weights.input_first ? 1 : 0));
    sizes.back() += widths.back();
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

// See Note [One product for several parameters].
class Projection : public ProjectionNode {
 public:
  Projection(const Result& x, const ProjectionWeights& weights) : ProjectionNode(x, weights) {
    if (!source() && trains_matrices()) {
      x_ = SavedVariable(x.value(), /*is_output=*/false);
    }
  }

  void release_variables() override {
    x_.reset_data();
    ProjectionNode::release_variables();
  }
  std::string name() const override { return "ShardwiseProjectionBackward"; }

 private:
  void differentiate(variable_list& all, const at::Tensor& gradient,
                     const std::vector<at::Tensor>& matrices) override {
    if (wants_x()) {
      all[0] = input_gradient(gradient, matrices);
    }
    if (wanted_matrices() > 0) {
      matrix_gradients(all, gradient);
    }
  }

  at::Tensor input_gradient(const at::Tensor& gradient,
                            const std::vector<at::Tensor>& matrices) const {
    // Where this is recorded the parameters themselves must be in the graph.
    const at::Tensor matrix =
        at::GradMode::is_enabled() && matrices.size() > 1 ? at::Tensor() : side_by_side(matrices);
    if (matrix.defined()) {
      const at::Tensor& factor = at::GradMode::is_enabled() ? matrices[0] : matrix;
      return gradient.mm(as_factor(factor, input_first()).t()).view(sizes());
    }
    const std::vector<at::Tensor> parts = gradient.split_with_sizes(widths(), 1);
    at::Tensor sum;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor factor = as_factor(matrices[i], input_first()).t();
      sum = sum.defined() ? at::addmm(sum, parts[i], factor) : parts[i].mm(factor);
    }
    return sum.view(sizes());
  }

  void matrix_gradients(variable_list& all, const at::Tensor& gradient) const {
    const at::Tensor x = rows_of(source() ? source()->value() : x_.unpack());
    const auto factors = [&](const at::Tensor& part) {
      return input_first() ? std::pair(x.t(), part) : std::pair(part.t(), x);
    };
    const auto [left, right] = factors(gradient);
    if (hand_over(params::PlainProduct(left, right))) {
      return;
    }
    put_matrices(all, [&](std::int64_t begin, std::int64_t width) {
      const auto [from_left, from_right] = factors(gradient.narrow(1, begin, width));
      return from_left.mm(from_right);
    });
  }

  SavedVariable x_;  // unless it has a source or no matrix needs a gradient
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

at::Tensor projected(const Result& x, const ProjectionWeights& weights, ops::Float8Recipe fp8) {
  SW_CHECK(weights.matrices.size() == 1 || !weights.input_first);
  variable_list tensors = weights.matrices;
  tensors.insert(tensors.end(), weights.biases.begin(), weights.biases.end());
  tensors.push_back(x.value());
  const bool recorded =
      at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(tensors);
  if (fp8 != ops::Float8Recipe::kOff &&
      std::all_of(weights.matrices.begin(), weights.matrices.end(), ops::fits_float8)) {
    return float8_projected(x, weights, fp8, recorded);
  }
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
