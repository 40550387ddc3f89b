// The ops' schemas and kernels under the name "shardwise".
#include <torch/library.h>

#include "shardwise/ops/activation.h"
#include "shardwise/ops/attention.h"
#include "shardwise/ops/embedding.h"
#include "shardwise/ops/float8.h"
#include "shardwise/ops/joined_linear.h"
#include "shardwise/ops/linear_cross_entropy.h"
#include "shardwise/ops/norm.h"
#include "shardwise/ops/rope.h"

namespace shardwise::ops {
namespace {

// Documents are given by `offsets` and `longest`.
at::Tensor causal_attention_op(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               double scale, double dropout, std::int64_t window,
                               const std::optional<at::Tensor>& offsets, std::int64_t longest) {
  CausalMask mask{.window = window};
  if (offsets) {
    mask.documents = Documents{.offsets = *offsets, .longest = longest};
    check_documents(*mask.documents, q.sym_size(0).guard_int(__FILE__, __LINE__),
                    q.sym_size(2).guard_int(__FILE__, __LINE__), q.device());
  }
  return causal_attention_of_heads(q, k, v, scale, dropout, mask);
}

// With autograd: made of the ops below, so no kernel of their own.
void define_differentiable(torch::Library& m) {
  m.def("rms_norm(Tensor x, Tensor? weight, float epsilon=1e-6) -> Tensor", &rms_norm);
  m.def("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float epsilon=1e-5) -> Tensor",
        &layer_norm);
  m.def(
      "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float epsilon=1e-6) "
      "-> (Tensor output, Tensor sum)",
      &add_rms_norm);
  m.def(
      "add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float epsilon=1e-5) "
      "-> (Tensor output, Tensor sum)",
      &add_layer_norm);
  m.def(
      "rope(Tensor rows, Tensor cosines, Tensor sines, Tensor? positions, int heads, int head_dim, "
      "bool interleaved=False) -> Tensor",
      &rope);
  m.def(
      "rope_(Tensor(a!) rows, Tensor cosines, Tensor sines, Tensor? positions, int heads, "
      "int head_dim, bool interleaved=False) -> Tensor(a!)",
      &rope_in_place);
  m.def("joined_linear(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor", &joined_linear);
  m.def(
      "rms_norm_beside(Tensor x, Tensor? weight, float epsilon=1e-6) -> (Tensor output, Tensor x)",
      &rms_norm_beside);
  m.def(
      "layer_norm_beside(Tensor x, Tensor? weight, Tensor? bias, float epsilon=1e-5) "
      "-> (Tensor output, Tensor x)",
      &layer_norm_beside);
  m.def(
      "causal_attention(Tensor q, Tensor k, Tensor v, float scale, float dropout=0.0, "
      "int window=0, Tensor? offsets=None, int longest=0) -> Tensor",
      &causal_attention_op);
  m.def("activation(Tensor x, str name, bool gated=False) -> Tensor", &activation);
  m.def("embedding(Tensor weight, Tensor ids, int padding=-1) -> Tensor", &embedding);
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor targets, *, "
      "Tensor? token_weights=None, int ignore_index=-100, float label_smoothing=0.0, "
      "float z_loss=0.0, str reduction='mean', float announced_factor=1.0, int chunk_rows=0) "
      "-> Tensor",
      &linear_cross_entropy_op);
}

void define_parts(torch::Library& m) {
  m.def(
      "norm_forward(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float epsilon, "
      "bool centred) -> (Tensor output, Tensor sum, Tensor mean, Tensor rstd)");
  m.def(
      "norm_backward(Tensor output_gradient, Tensor? sum_gradient, Tensor x, Tensor? weight, "
      "Tensor mean, Tensor rstd, bool centred, bool weight_gradient, bool bias_gradient) "
      "-> (Tensor input, Tensor weight, Tensor bias)");
  m.def(
      "rotate(Tensor rows, Tensor cosines, Tensor sines, Tensor? positions, int heads, "
      "int head_dim, bool interleaved, bool inverse) -> Tensor");
  m.def("joined_linear_forward(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor");
  m.def("joined_linear_backward_input(Tensor gradient, Tensor[] weights) -> Tensor");
  m.def("activation_forward(Tensor x, str name, bool gated) -> Tensor");
  m.def("activation_backward(Tensor x, Tensor gradient, str name, bool gated) -> Tensor");
  m.def(
      "embedding_backward(Tensor gradient, Tensor ids, SymInt vocabulary, int padding) -> Tensor");
  m.def(
      "linear_cross_entropy_forward(Tensor hidden, Tensor weight, Tensor targets, "
      "Tensor? token_weights, int ignore_index, float label_smoothing, float z_loss, bool mean, "
      "float announced_factor, Tensor? announced_scale, int chunk_rows, bool hidden_gradient, "
      "bool weight_gradient) "
      "-> (Tensor loss, Tensor hidden_gradient, Tensor weight_gradient)");
  m.def("rescale_(Tensor(a!) x, Tensor factor) -> ()");
  m.def("float8_amax(Tensor[] parts, bool rowwise) -> Tensor");
  m.def(
      "float8_quantize(Tensor[] parts, Tensor amax, bool rowwise, bool e5m2, bool rows, "
      "bool columns) -> (Tensor rows, Tensor columns, Tensor scales)");
  m.def(
      "scaled_product(Tensor left, Tensor right, Tensor left_scales, Tensor right_scales, "
      "Tensor? bias, bool fast) -> Tensor");
}

// The same functions serve the CPU and CUDA: the kernels choose by place.
void implement(torch::Library& m) {
  m.impl("norm_forward", &norm_forward);
  m.impl("norm_backward", &norm_backward);
  m.impl("rotate", &rotate);
  m.impl("joined_linear_forward", &joined_linear_forward);
  m.impl("joined_linear_backward_input", &joined_linear_backward_input);
  m.impl("activation_forward", &activation_forward);
  m.impl("activation_backward", &activation_backward);
  m.impl("embedding_backward", &embedding_backward);
  m.impl("linear_cross_entropy_forward", &linear_cross_entropy_forward);
  m.impl("rescale_", &rescale);
  m.impl("float8_amax", &float8_amax);
  m.impl("float8_quantize", &float8_quantize);
  m.impl("scaled_product", &scaled_product);
}

}  // namespace

TORCH_LIBRARY(shardwise, m) {
  define_differentiable(m);
  define_parts(m);
}

TORCH_LIBRARY_IMPL(shardwise, CPU, m) { implement(m); }

TORCH_LIBRARY_IMPL(shardwise, CUDA, m) { implement(m); }

// Shapes for tracing: meta tensors, fake tensors.
TORCH_LIBRARY_IMPL(shardwise, Meta, m) {
  m.impl("norm_forward", &norm_forward_shapes);
  m.impl("norm_backward", &norm_backward_shapes);
  m.impl("rotate", &rotate_shapes);
  m.impl("joined_linear_forward", &joined_linear_forward_shapes);
  m.impl("joined_linear_backward_input", &joined_linear_backward_input_shapes);
  m.impl("activation_forward", &activation_forward_shapes);
  m.impl("activation_backward", &activation_backward_shapes);
  m.impl("embedding_backward", &embedding_backward_shapes);
  m.impl("linear_cross_entropy_forward", &linear_cross_entropy_forward_shapes);
  m.impl("rescale_", [](const at::Tensor&, const at::Tensor&) {});
  m.impl("float8_amax", &float8_amax_shapes);
  m.impl("float8_quantize", &float8_quantize_shapes);
  m.impl("scaled_product", &scaled_product_shapes);
}

}  // namespace shardwise::ops
