#include "shardwise/ops/float8.h"

#include <ATen/ATen.h>

#include "shardwise/base/check.h"
#include "shardwise/kernels/float8.h"
#include "shardwise/ops/tensor_place.h"

namespace shardwise::ops {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kName = "fp8 product";

void check_parts(TensorList parts) {
  SW_USER_CHECK(UsageError, !parts.empty(), kName, ": there is no matrix");
  for (const Tensor& part : parts) {
    check_device(part, parts[0], kName, "a matrix");
    SW_USER_CHECK(
        UsageError,
        part.scalar_type() == at::kBFloat16 && part.dim() == 2 && part.size(1) == parts[0].size(1),
        kName, ": a matrix is ", part.scalar_type(), part.sizes(),
        "; it must be bfloat16 of [rows, ", parts[0].size(-1),
        "]; train in bf16 (\"bf16\": {\"enabled\": true}), or set shardwise.fp8 to "
        "\"off\"");
  }
}

// Rows may be apart, but are contiguous themselves.
Tensor with_whole_rows(const Tensor& part) {
  const bool whole = part.stride(1) == 1 && part.stride(0) >= part.size(1);
  return whole || part.numel() == 0 ? part : part.contiguous();
}

kernels::Float8Shape shape_of(const Tensor& part, bool rowwise, bool e5m2) {
  return {.rows = part.size(0),
          .columns = part.size(1),
          .row_stride = part.size(0) > 1 ? part.stride(0) : part.size(1),
          .format = e5m2 ? kernels::Float8::kE5m2 : kernels::Float8::kE4m3,
          .rowwise = rowwise};
}

c10::SymInt rows_of(TensorList parts) {
  c10::SymInt rows = 0;
  for (const Tensor& part : parts) {
    rows = rows + part.sym_size(0);
  }
  return rows;
}

c10::SymInt padded(const c10::SymInt& size) {
  return (size + (kFloat8Multiple - 1)) / kFloat8Multiple * kFloat8Multiple;
}

float* numbers(const Tensor& tensor) { return static_cast<float*>(pointer(tensor)); }

std::uint8_t* bytes(const Tensor& tensor, std::int64_t offset) {
  auto* begin = static_cast<std::uint8_t*>(pointer(tensor));
  return begin == nullptr ? nullptr : begin + offset;
}

// As the GPU computes it: sums of the values in fp32, which then are scaled.
void multiply_on_cpu(Tensor result, const Tensor& left, const Tensor& right,
                     const Tensor& left_scales, const Tensor& right_scales,
                     const OptionalTensor& bias) {
  Tensor sums = left.to(at::kFloat).mm(right.to(at::kFloat).t());
  sums.mul_(left_scales.unsqueeze(1)).mul_(right_scales);
  if (bias) {
    sums.add_(*bias);
  }
  result.copy_(sums);
}

void multiply(Tensor result, const Tensor& left, const Tensor& right, const Tensor& left_scales,
              const Tensor& right_scales, const OptionalTensor& bias, bool fast) {
  if (left.is_cpu()) {
    multiply_on_cpu(result, left, right, left_scales, right_scales, bias);
    return;
  }
  // Both kinds of scales, or none of them, are those of rows.
  at::_scaled_mm_out(result, left, right.t(), left_scales.unsqueeze(1), right_scales.unsqueeze(0),
                     bias, /*scale_result=*/std::nullopt, result.scalar_type(), fast);
}

}  // namespace

Float8Recipe float8_recipe(const std::string& name) {
  const bool tensorwise = name == "tensorwise";
  SW_USER_CHECK(UsageError, tensorwise || name == "rowwise" || name == "off",
                "fp8 can be \"off\", \"tensorwise\" or \"rowwise\", not \"", name, "\"");
  return tensorwise          ? Float8Recipe::kTensorwise
         : name == "rowwise" ? Float8Recipe::kRowwise
                             : Float8Recipe::kOff;
}

bool fits_float8(const Tensor& matrix) {
  return matrix.size(0) % kFloat8Multiple == 0 && matrix.size(1) % kFloat8Multiple == 0;
}

void check_some_fit_float8(const std::string& setting, bool some_fit) {
  SW_USER_CHECK(ConfigError, some_fit, "shardwise.fp8: \"", setting,
                "\" acts on matrices whose sizes are multiples of ", kFloat8Multiple,
                ", and the blocks of this model have none: choose such sizes of the hidden states "
                "and of the heads or the MLP, or set it to \"off\"");
}

Float8Source::Float8Source(std::vector<Tensor> matrix, Float8Recipe recipe, bool is_gradient,
                           Tensor amax)
    : parts(std::move(matrix)), recipe(recipe), is_gradient(is_gradient), amax(std::move(amax)) {
  SW_CHECK(recipe != Float8Recipe::kOff);
  if (!this->amax.defined()) {
    this->amax = call_op("shardwise::float8_amax", &ops::float8_amax, parts,
                         recipe == Float8Recipe::kRowwise);
  }
}

Float8Pair Float8Source::quantize(bool rows, bool columns) const {
  const bool rowwise = recipe == Float8Recipe::kRowwise;
  const auto [straight, transposed, scales] =
      call_op("shardwise::float8_quantize", &float8_quantize, parts, amax, rowwise,
              is_gradient && !rowwise, rows, columns);
  Float8Pair pair;
  if (rows) {
    pair.rows = {straight, rowwise ? scales.narrow(0, 0, straight.size(0)) : scales};
  }
  if (columns) {
    const std::int64_t width = transposed.size(0);
    pair.columns = {transposed, rowwise ? scales.narrow(0, scales.size(0) - width, width) : scales};
  }
  return pair;
}

Tensor float8_product(const Float8Operand& left, const Float8Operand& right,
                      const OptionalTensor& bias, bool fast) {
  return call_op("shardwise::scaled_product", &scaled_product, left.values, right.values,
                 left.scales, right.scales, bias, fast);
}

void float8_product_into(const Tensor& place, const Float8Operand& left,
                         const Float8Operand& right) {
  SW_CHECK(place.is_contiguous() && place.scalar_type() == at::kBFloat16);
  const c10::DeviceGuard guard(place.device());
  multiply(place, left.values, right.values, left.scales, right.scales, std::nullopt,
           /*fast=*/false);
}

Tensor float8_amax_shapes(TensorList parts, bool rowwise) {
  const c10::SymInt count =
      rowwise ? padded(rows_of(parts)) + parts[0].sym_size(1) : c10::SymInt(1);
  return at::empty_symint({count}, parts[0].options().dtype(at::kFloat));
}

Tensor float8_amax(TensorList parts, bool rowwise) {
  check_parts(parts);
  const c10::DeviceGuard guard(parts[0].device());
  const Tensor amax = float8_amax_shapes(parts, rowwise).zero_();
  float* of_rows = numbers(amax);
  float* const of_columns = rowwise ? of_rows + (amax.numel() - parts[0].size(1)) : nullptr;
  for (const Tensor& part : parts) {
    const Tensor rows = with_whole_rows(part);
    kernels::float8_amax(place_of(part), shape_of(rows, rowwise, /*e5m2=*/false), pointer(rows),
                         of_rows, of_columns);
    of_rows += rowwise ? part.size(0) : 0;
  }
  return amax;
}

std::tuple<Tensor, Tensor, Tensor> float8_quantize_shapes(TensorList parts, const Tensor& amax,
                                                          bool, bool e5m2, bool rows,
                                                          bool columns) {
  const at::TensorOptions options =
      parts[0].options().dtype(e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn);
  const c10::SymInt height = rows_of(parts), width = parts[0].sym_size(1);
  return {rows ? at::empty_symint({height, width}, options) : at::empty({0}, options),
          columns ? at::empty_symint({width, padded(height)}, options) : at::empty({0}, options),
          at::empty_symint(amax.sym_sizes(), amax.options())};
}

std::tuple<Tensor, Tensor, Tensor> float8_quantize(TensorList parts, const Tensor& amax,
                                                   bool rowwise, bool e5m2, bool rows,
                                                   bool columns) {
  check_parts(parts);
  check_device(amax, parts[0], kName, "amax");
  const std::int64_t width = parts[0].size(1);
  const std::int64_t height = rows_of(parts).expect_int();
  const std::int64_t columns_at = rowwise ? padded(height).expect_int() : 0;
  SW_USER_CHECK(UsageError,
                amax.scalar_type() == at::kFloat && amax.is_contiguous() &&
                    amax.numel() == (rowwise ? columns_at + width : 1),
                kName, ": amax is ", amax.scalar_type(), amax.sizes(),
                "; it must be what "
                "float8_amax gave for these matrices");
  const c10::DeviceGuard guard(amax.device());
  auto results = float8_quantize_shapes(parts, amax, rowwise, e5m2, rows, columns);
  const auto& [straight, transposed, scales] = results;
  if (height == 0 || width == 0) {
    scales.fill_(1);
    return results;
  }
  const std::int64_t stride = columns ? transposed.size(1) : 0;
  std::int64_t row = 0;
  for (const Tensor& part : parts) {
    const Tensor matrix = with_whole_rows(part);
    const std::int64_t next = row + part.size(0);
    kernels::float8_quantize(
        place_of(part), shape_of(matrix, rowwise, e5m2),
        {.input = pointer(matrix),
         .row_amax = numbers(amax) + (rowwise ? row : 0),
         .column_amax = numbers(amax) + columns_at,
         .row_scales = numbers(scales) + (rowwise ? row : 0),
         .column_scales = numbers(scales) + columns_at,
         .straight = bytes(straight, row * width),
         .transposed = bytes(transposed, row),
         .transposed_stride = stride,
         .transposed_width = columns ? (next == height ? stride - row : part.size(0)) : 0});
    row = next;
  }
  return results;
}

Tensor scaled_product_shapes(const Tensor& left, const Tensor& right, const Tensor&, const Tensor&,
                             const OptionalTensor&, bool) {
  return at::empty_symint({left.sym_size(0), right.sym_size(0)},
                          left.options().dtype(at::kBFloat16));
}

Tensor scaled_product(const Tensor& left, const Tensor& right, const Tensor& left_scales,
                      const Tensor& right_scales, const OptionalTensor& bias, bool fast) {
  for (const Tensor& other : {right, left_scales, right_scales}) {
    check_device(other, left, kName, "an operand");
  }
  SW_USER_CHECK(
      UsageError,
      left.dim() == 2 && right.dim() == 2 && left.size(1) == right.size(1) &&
          ((left_scales.numel() == 1 && right_scales.numel() == 1) ||
           (left_scales.numel() == left.size(0) && right_scales.numel() == right.size(0))),
      kName, ": operands of ", left.sizes(), " and ", right.sizes(), " with scales of ",
      left_scales.sizes(), " and ", right_scales.sizes(),
      "; they must be [m, n] and [k, n], both with one scale or both with one a row");
  for (const Tensor& operand : {left, right}) {
    SW_USER_CHECK(
        UsageError,
        operand.scalar_type() == at::kFloat8_e4m3fn || operand.scalar_type() == at::kFloat8_e5m2,
        kName, ": an operand is ", operand.scalar_type(), "; cast it by float8_quantize");
  }
  const c10::DeviceGuard guard(left.device());
  const Tensor result = scaled_product_shapes(left, right, left_scales, right_scales, bias, fast);
  multiply(result, left, right, left_scales, right_scales, bias, fast);
  return result;
}

}  // namespace shardwise::ops
