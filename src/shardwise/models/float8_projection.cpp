// Note [Products in fp8]
// A product has three operands in the whole: x [rows, in], the matrix [out, in] and the gradient of
// the result [rows, out]. Each is contracted along one side in one product and along the other in
// another, and the GPU contracts along contiguous rows alone, so each is needed as it is and
// transposed. x is cast once, into both: backward keeps the transposed copy, a byte a number, in
// place of x; where x has a source it keeps nothing but the largest magnitudes. Copies of the
// matrices are made in forward and again in backward: kept they would be a second model, whole, on
// each rank of a sharded one. The gradient of the result is cast once. The parts of a joined matrix
// have their scales in common, so results do not depend on where parameters lie.
//
// Gradients of matrices come out in bf16. Sums in fp32 get them added, as in the reducer's
// own way from micro-batch to micro-batch.
#include "shardwise/models/float8_projection.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "shardwise/base/check.h"
#include "shardwise/models/projection_node.h"

namespace shardwise::models {
namespace {

using ops::Float8Operand;
using ops::Float8Pair;
using ops::Float8Recipe;
using ops::Float8Source;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// left [rows, n] · right [columns, n] transposed.
class Float8Product : public params::Product {
 public:
  Float8Product(Float8Operand left, Float8Operand right)
      : left_(std::move(left)), right_(std::move(right)) {}
  std::int64_t rows() const override { return left_.values.size(0); }
  std::int64_t columns() const override { return right_.values.size(0); }
  bool goes_into(at::ScalarType dtype) const override {
    return dtype == at::kBFloat16 || dtype == at::kFloat;
  }
  void write(const at::Tensor& place, bool add) const override {
    if (!add && place.scalar_type() == at::kBFloat16) {
      ops::float8_product_into(place, left_, right_);
    } else {
      add ? place.add_(value()) : place.copy_(value());
    }
  }
  at::Tensor value() const {
    return ops::float8_product(left_, right_, /*bias=*/std::nullopt, /*fast=*/false);
  }

 private:
  Float8Operand left_, right_;
};

// Rows of an operand.
Float8Operand part_of(const Float8Operand& operand, std::int64_t begin, std::int64_t count) {
  const bool rowwise = operand.scales.numel() == operand.values.size(0);
  return {operand.values.narrow(0, begin, count),
          rowwise ? operand.scales.narrow(0, begin, count) : operand.scales};
}

// What forward has of an operand that backward needs again.
struct Kept {
  SavedVariable values, scales, amax;

  void keep(const Float8Operand& operand) {
    values = SavedVariable(operand.values, /*is_output=*/false);
    scales = SavedVariable(operand.scales, /*is_output=*/false);
  }
  void keep(const Float8Source& source) { amax = SavedVariable(source.amax, /*is_output=*/false); }
  Float8Operand operand() const { return {values.unpack(), scales.unpack()}; }
  void release() {
    values.reset_data();
    scales.reset_data();
    amax.reset_data();
  }
};

// See Note [Products in fp8].
class Float8Projection : public ProjectionNode {
 public:
  Float8Projection(const Result& x, const ProjectionWeights& weights, Float8Recipe recipe)
      : ProjectionNode(x, weights), recipe_(recipe) {}

  // Else backward computes x again, or does not need it.
  bool keeps_x() const { return !source() && trains_matrices(); }
  void keep(const Float8Source& x, const Float8Operand& transposed, const Float8Source& matrices) {
    kept_matrices_.keep(matrices);
    if (source()) {
      kept_x_.keep(x);
    } else if (keeps_x()) {
      kept_x_.keep(transposed);
    }
  }
  void release_variables() override {
    kept_x_.release();
    kept_matrices_.release();
    ProjectionNode::release_variables();
  }
  std::string name() const override { return "ShardwiseFloat8ProjectionBackward"; }

 private:
  void differentiate(variable_list& all, const at::Tensor& gradient,
                     const std::vector<at::Tensor>& matrices) override {
    SW_USER_CHECK(UsageError, !at::GradMode::is_enabled(),
                  "gradients of gradients do not pass through products in fp8; set shardwise.fp8 "
                  "to \"off\"");
    if (!wants_x() && wanted_matrices() == 0) {
      return;
    }
    const Float8Pair gradients = Float8Source({gradient}, recipe_, /*is_gradient=*/true)
                                     .quantize(wants_x(), wanted_matrices() > 0);
    if (wants_x()) {
      const Float8Source matrix(matrices, recipe_, /*is_gradient=*/false,
                                kept_matrices_.amax.unpack());
      const Float8Pair copy = matrix.quantize(input_first(), !input_first());
      all[0] = ops::float8_product(gradients.rows, input_first() ? copy.rows : copy.columns,
                                   /*bias=*/std::nullopt, /*fast=*/false)
                   .view(sizes());
    }
    if (wanted_matrices() > 0) {
      matrix_gradients(all, gradients.columns);
    }
  }

  void matrix_gradients(variable_list& all, const Float8Operand& gradient) const {
    const Float8Operand x = transposed_x();
    const auto product = [&](const Float8Operand& part) {
      return input_first() ? Float8Product(x, part) : Float8Product(part, x);
    };
    if (hand_over(product(gradient))) {
      return;
    }
    put_matrices(all, [&](std::int64_t begin, std::int64_t width) {
      return product(part_of(gradient, begin, width)).value();
    });
  }

  Float8Operand transposed_x() const {
    if (!source()) {
      return kept_x_.operand();
    }
    const Float8Source x({rows_of(source()->value())}, recipe_, /*is_gradient=*/false,
                         kept_x_.amax.unpack());
    return x.quantize(/*rows=*/false, /*columns=*/true).columns;
  }

  Float8Recipe recipe_;
  Kept kept_x_, kept_matrices_;
};

std::optional<at::Tensor> joined_bias(const std::vector<at::Tensor>& biases) {
  if (biases.empty()) {
    return std::nullopt;
  }
  const at::Tensor joined = side_by_side(biases);
  return joined.defined() ? joined : at::cat(biases);
}

}  // namespace

at::Tensor float8_projected(const Result& x, const ProjectionWeights& weights, Float8Recipe recipe,
                            bool recorded) {
  std::vector<std::int64_t> sizes = x.value().sizes().vec();
  at::Tensor result;
  std::shared_ptr<Float8Projection> node;
  if (recorded) {
    node = {new Float8Projection(x, weights, recipe), torch::autograd::deleteNode};
  }
  {
    const at::NoGradGuard without_graph;
    const Float8Source input({rows_of(x.value())}, recipe, /*is_gradient=*/false);
    const Float8Pair rows = input.quantize(/*rows=*/true, recorded && node->keeps_x());
    const Float8Source matrices(weights.matrices, recipe, /*is_gradient=*/false);
    const Float8Pair copy = matrices.quantize(!weights.input_first, weights.input_first);
    result = ops::float8_product(rows.rows, weights.input_first ? copy.columns : copy.rows,
                                 joined_bias(weights.biases), /*fast=*/true);
    sizes.back() = result.size(1);
    result = at::_unsafe_view(result, sizes);  // no view to autograd: who gets it may change it
    if (recorded) {
      node->keep(input, rows.columns, matrices);
    }
  }
  if (recorded) {
    torch::autograd::create_gradient_edge(result, std::shared_ptr<Node>(node));
  }
  return result;
}

}  // namespace shardwise::models
