#include "shardwise/kernels/rope.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "shardwise/base/check.h"
#include "shardwise/ops/rope.h"
#include "shardwise/ops/second_derivatives.h"
#include "shardwise/ops/tensor_place.h"

namespace shardwise::ops {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "rope";

// How rows are rotated, besides the rows.
struct Rotation {
  Tensor cosines, sines;
  OptionalTensor positions;
  std::int64_t heads;
  std::int64_t head_dim;
  bool interleaved;
};

void check_table(const Tensor& table, const Rotation& r, const Tensor& rows, const char* argument) {
  check_device(table, rows, kName, argument);
  SW_USER_CHECK(
      UsageError,
      table.dim() == 2 && table.scalar_type() == at::kFloat && table.sizes() == r.cosines.sizes() &&
          2 * table.size(1) <= r.head_dim,
      kName, ": ", argument, " is ", table.scalar_type(), table.sizes(),
      "; cosines and sines must be float32 [positions, rotary_dim / 2] with rotary_dim of "
      "at most head_dim, ",
      r.head_dim);
}

void check_positions(const Rotation& r, const Tensor& rows) {
  const std::int64_t rows_of_table = r.cosines.size(0);
  if (!r.positions) {
    SW_USER_CHECK(UsageError, rows.size(-2) <= rows_of_table, kName, ": a sequence of ",
                  rows.size(-2), " tokens needs as many rows in the tables; they have ",
                  rows_of_table);
    return;
  }
  const Tensor& positions = *r.positions;
  check_device(positions, rows, kName, "positions");
  SW_USER_CHECK(UsageError,
                positions.scalar_type() == at::kLong &&
                    positions.sizes() == rows.sizes().slice(0, rows.dim() - 1),
                kName, ": positions are ", positions.scalar_type(), positions.sizes(),
                "; they must be int64 of the shape of rows without its last dimension, ",
                rows.sizes().slice(0, rows.dim() - 1));
  if (positions.device().is_cpu() && positions.numel() > 0) {
    const auto [low, high] = at::aminmax(positions);
    SW_USER_CHECK(UsageError,
                  low.item<std::int64_t>() >= 0 && high.item<std::int64_t>() < rows_of_table, kName,
                  ": positions go from ", low.item<std::int64_t>(), " to ",
                  high.item<std::int64_t>(), ", but the tables have ", rows_of_table, " rows");
  }
}

void check(const Rotation& r, const Tensor& rows) {
  SW_USER_CHECK(
      UsageError,
      rows.dim() >= 2 && r.heads >= 0 && r.head_dim >= 1 && rows.size(-1) >= r.heads * r.head_dim,
      kName, ": rows of shape ", rows.sizes(), " do not hold ", r.heads, " heads of ", r.head_dim,
      "; they must be [..., seq, row] with row at least heads x head_dim");
  check_table(r.cosines, r, rows, "cosines");
  check_table(r.sines, r, rows, "sines");
  check_positions(r, rows);
}

// from and to: contiguous, the same shape; may be the same.
void run(const Rotation& r, const Tensor& from, const Tensor& to, bool inverse) {
  if (from.numel() == 0) {
    return;
  }
  const c10::DeviceGuard guard(from.device());
  const Tensor cosines = r.cosines.contiguous();
  const Tensor sines = r.sines.contiguous();
  const OptionalTensor positions = contiguous(r.positions);
  kernels::rope(place_of(from),
                {.dtype = dtype_of(from, kName),
                 .tokens = from.numel() / from.size(-1),
                 .row_stride = from.size(-1),
                 .heads = r.heads,
                 .head_dim = r.head_dim,
                 .rotary_dim = 2 * cosines.size(1),
                 .interleaved = r.interleaved,
                 .inverse = inverse,
                 .sequence = std::max<std::int64_t>(from.size(-2), 1)},
                pointer(from), pointer(to), static_cast<const float*>(pointer(cosines)),
                static_cast<const float*>(pointer(sines)),
                static_cast<const std::int64_t*>(pointer(positions)));
}

void save(AutogradContext* context, const Rotation& r) {
  context->save_for_backward({r.cosines, r.sines, value_or_undefined(r.positions)});
  context->saved_data["heads"] = r.heads;
  context->saved_data["head_dim"] = r.head_dim;
  context->saved_data["interleaved"] = r.interleaved;
}

Rotation saved_rotation(AutogradContext* context) {
  const variable_list saved = context->get_saved_variables();
  return {.cosines = saved[0],
          .sines = saved[1],
          .positions = optional_of(saved[2]),
          .heads = context->saved_data["heads"].toInt(),
          .head_dim = context->saved_data["head_dim"].toInt(),
          .interleaved = context->saved_data["interleaved"].toBool()};
}

Tensor rotate_by_op(const Rotation& r, const Tensor& rows, bool inverse) {
  return call_op("shardwise::rotate", &rotate, rows, r.cosines, r.sines, r.positions, r.heads,
                 r.head_dim, r.interleaved, inverse);
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& cosines,
                        const Tensor& sines, const OptionalTensor& positions, std::int64_t heads,
                        std::int64_t head_dim, bool interleaved) {
    const Rotation r{cosines, sines, positions, heads, head_dim, interleaved};
    save(context, r);
    return rotate_by_op(r, rows, false);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Rotation r = saved_rotation(context);
    return {
        backward_is_recorded() ? recorded(r, gradients[0]) : rotate_by_op(r, gradients[0], true),
        {},
        {},
        {},
        {},
        {},
        {}};
  }
  // Back by the rotation with the opposite sines, which has a derivative.
  static Tensor recorded(const Rotation& r, const Tensor& gradient) {
    return RopeFunction::apply(gradient, r.cosines, at::neg(r.sines), r.positions, r.heads,
                               r.head_dim, r.interleaved);
  }
};

struct RopeInPlaceFunction : torch::autograd::Function<RopeInPlaceFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& cosines,
                        const Tensor& sines, const OptionalTensor& positions, std::int64_t heads,
                        std::int64_t head_dim, bool interleaved) {
    const Rotation r{cosines, sines, positions, heads, head_dim, interleaved};
    check(r, rows);
    SW_USER_CHECK(UsageError, rows.is_contiguous(), kName,
                  ": rows that are rotated in place must be contiguous");
    run(r, rows, rows, false);
    torch::autograd::impl::bump_version(rows);  // who saved the rows before must not use these
    context->mark_dirty({rows});
    save(context, r);
    return rows;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Rotation r = saved_rotation(context);
    const Tensor& gradient = gradients[0];
    if (backward_is_recorded()) {
      return {RopeFunction::recorded(r, gradient), {}, {}, {}, {}, {}, {}};
    }
    // As AccumulateGrad takes a gradient over: nobody else can read it.
    const bool own = gradient.use_count() == 1 && gradient.storage().use_count() == 1 &&
                     gradient.is_contiguous();
    if (!own) {
      return {rotate_by_op(r, gradient, true), {}, {}, {}, {}, {}, {}};
    }
    run(r, gradient, gradient, true);
    return {gradient, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

Tensor rotate_shapes(const Tensor& rows, const Tensor&, const Tensor&, const OptionalTensor&,
                     std::int64_t, std::int64_t, bool, bool) {
  return at::empty_symint(rows.sym_sizes(), rows.options());
}

Tensor rotate(const Tensor& rows, const Tensor& cosines, const Tensor& sines,
              const OptionalTensor& positions, std::int64_t heads, std::int64_t head_dim,
              bool interleaved, bool inverse) {
  const Rotation r{cosines, sines, positions, heads, head_dim, interleaved};
  check(r, rows);
  const Tensor from = rows.contiguous();
  if (2 * cosines.size(1) < head_dim) {  // a part of each head stays
    const Tensor copy = from.is_same(rows) ? from.clone() : from;
    run(r, copy, copy, inverse);
    return copy;
  }
  const Tensor to = at::empty_like(from);
  const std::int64_t rotated = heads * head_dim;
  const std::int64_t rest = from.size(-1) - rotated;
  if (rest > 0) {
    to.narrow(-1, rotated, rest).copy_(from.narrow(-1, rotated, rest));
  }
  run(r, from, to, inverse);
  return to;
}

Tensor rope(const Tensor& rows, const Tensor& cosines, const Tensor& sines,
            const OptionalTensor& positions, std::int64_t heads, std::int64_t head_dim,
            bool interleaved) {
  return RopeFunction::apply(rows, cosines, sines, positions, heads, head_dim, interleaved);
}

Tensor rope_in_place(const Tensor& rows, const Tensor& cosines, const Tensor& sines,
                     const OptionalTensor& positions, std::int64_t heads, std::int64_t head_dim,
                     bool interleaved) {
  return RopeInPlaceFunction::apply(rows, cosines, sines, positions, heads, head_dim, interleaved);
}

}  // namespace shardwise::ops
