#include "shardwise/params/gradient_sink.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

namespace shardwise::params {

PlainProduct::PlainProduct(at::Tensor left, at::Tensor right)
    : left_(std::move(left)), right_(std::move(right)) {}

// 16-bit factors with a sum in fp32 are one operation on CUDA only.
bool PlainProduct::goes_into(at::ScalarType dtype) const {
  return dtype == left_.scalar_type() || (dtype == at::kFloat && left_.is_cuda());
}

void PlainProduct::write(const at::Tensor& place, bool add) const {
  const at::ScalarType dtype = place.scalar_type();
  const bool rounds = dtype == left_.scalar_type();
  at::Tensor into = place;
  if (add) {
    rounds ? into.addmm_(left_, right_) : at::addmm_out(into, into, left_, right_, dtype);
  } else {
    rounds ? at::mm_out(into, left_, right_) : at::mm_out(into, left_, right_, dtype);
  }
}

GradientSink* sole_sink(const torch::autograd::Edge& edge) {
  torch::autograd::Node* node = edge.function.get();
  const bool alone = node != nullptr && node->pre_hooks().size() == 1 &&
                     node->tensor_pre_hooks().empty() && node->post_hooks().empty() &&
                     node->tensor_post_acc_grad_hooks() == nullptr;
  return alone ? dynamic_cast<GradientSink*>(node->pre_hooks().front().get()) : nullptr;
}

}  // namespace shardwise::params
