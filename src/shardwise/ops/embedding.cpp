#include "shardwise/ops/embedding.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "shardwise/base/check.h"
#include "shardwise/kernels/embedding.h"
#include "shardwise/ops/second_derivatives.h"
#include "shardwise/ops/tensor_place.h"

namespace shardwise::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "embedding";

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& weight, const Tensor& ids,
                        std::int64_t padding) {
    context->save_for_backward({ids});
    context->saved_data["vocabulary"] = weight.sym_size(0);
    context->saved_data["padding"] = padding;
    return at::embedding(weight, ids);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (backward_is_recorded()) {
      return {at::embedding_dense_backward_symint(gradients[0], context->get_saved_variables()[0],
                                                  context->saved_data["vocabulary"].toSymInt(),
                                                  context->saved_data["padding"].toInt(),
                                                  /*scale_grad_by_freq=*/false),
              {},
              {}};
    }
    return {call_op("shardwise::embedding_backward", &embedding_backward, gradients[0],
                    context->get_saved_variables()[0], context->saved_data["vocabulary"].toSymInt(),
                    context->saved_data["padding"].toInt()),
            {},
            {}};
  }
};

}  // namespace

Tensor embedding_backward_shapes(const Tensor& gradient, const Tensor&, c10::SymInt vocabulary,
                                 std::int64_t) {
  return at::empty_symint({std::move(vocabulary), gradient.sym_size(-1)}, gradient.options());
}

Tensor embedding_backward(const Tensor& gradient, const Tensor& ids, c10::SymInt vocabulary,
                          std::int64_t padding) {
  SW_USER_CHECK(
      UsageError,
      ids.scalar_type() == at::kLong && ids.device() == gradient.device() &&
          gradient.dim() == ids.dim() + 1 && gradient.sizes().slice(0, ids.dim()) == ids.sizes(),
      kName, ": a gradient of shape ", gradient.sizes(), " on ", gradient.device(),
      " does not fit ids that are ", ids.scalar_type(), ids.sizes(), " on ", ids.device());
  const c10::DeviceGuard guard(gradient.device());
  const kernels::DType dtype = dtype_of(gradient, kName);
  const kernels::EmbeddingShape shape{.dtype = dtype,
                                      .table_dtype = dtype,
                                      .tokens = ids.numel(),
                                      .width = gradient.size(-1),
                                      .vocabulary = vocabulary.expect_int(),
                                      .padding = padding};
  const auto [sorted, order] = at::sort(ids.flatten(), std::optional<bool>(true), /*dim=*/0);
  const Tensor rows = gradient.contiguous();
  const Tensor table = at::zeros({shape.vocabulary, shape.width}, gradient.options());
  const kernels::Place place = place_of(gradient);
  const Tensor partials =
      at::empty({kernels::embedding_partials(place, shape)}, gradient.options().dtype(at::kFloat));
  kernels::embedding_backward(place, shape,
                              {.sorted = static_cast<const std::int64_t*>(pointer(sorted)),
                               .order = static_cast<const std::int64_t*>(pointer(order)),
                               .gradients = pointer(rows),
                               .table = pointer(table),
                               .partials = static_cast<float*>(pointer(partials))});
  return table;
}

Tensor embedding(const Tensor& weight, const Tensor& ids, std::int64_t padding) {
  SW_USER_CHECK(UsageError, weight.dim() == 2 && ids.scalar_type() == at::kLong, kName,
                ": weight of shape ", weight.sizes(), " and ids of ", ids.scalar_type(),
                "; they must be [vocabulary, width] and int64");
  return EmbeddingFunction::apply(weight, ids, padding);
}

}  // namespace shardwise::ops
