// Products of matrices in fp8, by torch._scaled_mm on GPUs that have them and in fp32 on the CPU,
// with scales of the present values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace shardwise::ops {

// How the products of a layer run. The scales are those of torchao's recipes of the same names
// (https://github.com/pytorch/ao, torchao/float8).
enum class Float8Recipe {
  kOff,
  kTensorwise,  // one scale a matrix; E4M3, and E5M2 for the gradient of a result
  kRowwise      // one scale, a power of two, for what is contracted; E4M3
};

// "off", "tensorwise" or "rowwise", as shardwise.fp8 has it; UsageError for other words.
Float8Recipe float8_recipe(const std::string& name);

// All sizes of matrices in fp8 products must be multiples of this, but for the number of rows of
// activations.
inline constexpr std::int64_t kFloat8Multiple = 16;

// Whether a matrix [out, in] or [in, out] is of such sizes.
bool fits_float8(const at::Tensor& matrix);

// Throws ConfigError where a model has blocks and no matrix of theirs fits. `setting` is that of
// shardwise.fp8.
void check_some_fit_float8(const std::string& setting, bool some_fit);

// Whether the device multiplies in fp8: the CPU, and GPUs from compute capability 8.9 on.
bool has_float8_products(at::Device device);

// One operand of a product, rows [rows, n] that are contracted along n: values × scales.
struct Float8Operand {
  at::Tensor values;  // float8_e4m3fn or float8_e5m2, contiguous
  at::Tensor scales;  // fp32, [1] or [rows]
};

// A matrix as both kinds of operand; those that nobody asked for are undefined.
struct Float8Pair {
  // [rows, columns]
  Float8Operand rows;
  // Transposed: [columns, rows], with as many zeros behind as kFloat8Multiple asks.
  Float8Operand columns;
};

// A matrix [rows, columns] in bf16 that is cut into parts by rows, and the largest magnitudes in
// it. A second cast of the same numbers needs no second pass for them.
struct Float8Source {
  std::vector<at::Tensor> parts;
  Float8Recipe recipe;
  bool is_gradient;  // of a result
  at::Tensor amax;   // see float8_amax

  Float8Source(std::vector<at::Tensor> matrix, Float8Recipe recipe, bool is_gradient,
               at::Tensor amax = {});
  Float8Pair quantize(bool rows, bool columns) const;
};

// left [m, n] · right [k, n] transposed, plus bias [k]: bf16 [m, k], sums in fp32. `fast`: the
// GPU's shorter accumulator, as torchao has it for forward alone.
at::Tensor float8_product(const Float8Operand& left, const Float8Operand& right,
                          const std::optional<at::Tensor>& bias, bool fast);
// The same into a contiguous bf16 matrix.
void float8_product_into(const at::Tensor& place, const Float8Operand& left,
                         const Float8Operand& right);

// What it is made of; no autograd.

// fp32: [1], or rowwise those of each row, padded to a multiple of kFloat8Multiple, then of each
// column.
at::Tensor float8_amax(at::TensorList parts, bool rowwise);
at::Tensor float8_amax_shapes(at::TensorList parts, bool rowwise);
// (rows, columns, scales), where the scales lie as `amax` does; [0] for a copy that is not wanted.
std::tuple<at::Tensor, at::Tensor, at::Tensor> float8_quantize(at::TensorList parts,
                                                               const at::Tensor& amax, bool rowwise,
                                                               bool e5m2, bool rows, bool columns);
std::tuple<at::Tensor, at::Tensor, at::Tensor> float8_quantize_shapes(at::TensorList parts,
                                                                      const at::Tensor& amax,
                                                                      bool rowwise, bool e5m2,
                                                                      bool rows, bool columns);
at::Tensor scaled_product(const at::Tensor& left, const at::Tensor& right,
                          const at::Tensor& left_scales, const at::Tensor& right_scales,
                          const std::optional<at::Tensor>& bias, bool fast);
at::Tensor scaled_product_shapes(const at::Tensor& left, const at::Tensor& right,
                                 const at::Tensor& left_scales, const at::Tensor& right_scales,
                                 const std::optional<at::Tensor>& bias, bool fast);

}  // namespace shardwise::ops
