// RMSNorm (Zhang, Sennrich 2019, https://arxiv.org/abs/1910.07467) and LayerNorm (Ba, Kiros, Hinton
// 2016, https://arxiv.org/abs/1607.06450) of rows, with the addition of the residual before them.
#pragma once

#include <cstdint>

#include "shardwise/kernels/types.h"

namespace shardwise::kernels {

// Widest row: 16 warps of 32 threads with 32 elements each.
inline constexpr std::int64_t kMaxNormWidth = 16384;

struct NormShape {
  bool centred = false;  // true: LayerNorm; false: RMSNorm, which has neither mean nor bias
  std::int64_t rows = 0;
  std::int64_t width = 0;  // 1 … kMaxNormWidth
  double epsilon = 1e-5;
  DType dtype = DType::kFloat32;         // of rows and their gradients
  DType weight_dtype = DType::kFloat32;  // of weight, bias and their gradients: dtype or fp32
};

// With x = input + residual, rounded to the dtype:
//   output = (x − mean) · rstd · weight + bias,   rstd = 1 / √(mean of (x − mean)² + epsilon)
// computed in fp32 (fp64 for fp64) and rounded once. Arrays of rows are contiguous [rows, width].
struct NormForward {
  const void* input = nullptr;
  const void* residual = nullptr;  // null: none
  const void* weight = nullptr;    // [width]; null: 1
  const void* bias = nullptr;      // [width]; null: 0
  void* sum = nullptr;             // x, where there is a residual; may be input or residual
  void* output = nullptr;          // may be input, where there is no residual
  float* mean = nullptr;           // [rows], centred only
  float* rstd = nullptr;           // [rows]
};
void norm_forward(const Place& place, const NormShape& shape, const NormForward& arrays);

struct NormBackward {
  const void* output_gradient = nullptr;
  const void* sum_gradient = nullptr;  // of x by other ways, such as the residual; null: 0
  const void* x = nullptr;             // what was normalised: the sum, or the input
  const void* weight = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  void* input_gradient = nullptr;   // of input and of residual; may be one of the two gradients
  void* weight_gradient = nullptr;  // [width]; null: not wanted
  void* bias_gradient = nullptr;    // [width]; null: not wanted
  float* partials = nullptr;        // norm_partials() numbers for the two above
};
// Sums over rows run in fixed order: partials of runs of rows, then the sum of the partials.
void norm_backward(const Place& place, const NormShape& shape, const NormBackward& arrays);

// How many numbers norm_backward needs in `partials` where it makes gradients of weight or bias.
std::int64_t norm_partials(const Place& place, const NormShape& shape);

}  // namespace shardwise::kernels
