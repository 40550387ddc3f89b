// Matrices in fp8 for products whose operands carry scales. The formats are those of Micikevicius
// et al. 2022, "FP8 Formats for Deep Learning", https://arxiv.org/abs/2209.05433, section 3; a
// scale comes from the numbers that it is for ("current scaling"), so nothing is saturated.
#pragma once

#include <cstdint>

#include "shardwise/kernels/types.h"

namespace shardwise::kernels {

enum class Float8 : std::uint8_t {
  kE4m3,  // largest number 448, no infinity: torch.float8_e4m3fn
  kE5m2,  // largest number 57344: torch.float8_e5m2
};

// A matrix of bf16, its rows `row_stride` elements apart.
struct Float8Shape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;
  Float8 format = Float8::kE4m3;
  // Every row, and in the transposed copy every column, has a scale of its own, a power of two;
  // else the matrix has one.
  bool rowwise = false;
};

// Largest magnitudes, merged with those that are there, so begin with zeros; of a matrix that is
// cut into parts they are those of the whole. Rowwise: `of_rows` [rows] and `of_columns` [columns],
// of which either may be null. Else `of_rows` [1], and `of_columns` is not looked at. NaN counts as
// the largest.
void float8_amax(const Place& place, const Float8Shape& shape, const void* input, float* of_rows,
                 float* of_columns);

// What a matrix becomes. Null results are not made.
struct Float8Arrays {
  const void* input = nullptr;
  // As float8_amax gave them; rowwise those of a copy that is not made may be null, else both point
  // at the one.
  const float* row_amax = nullptr;
  const float* column_amax = nullptr;
  // [rows] and [columns], or [1] each: numbers times these are the input's, but for rounding.
  float* row_scales = nullptr;
  float* column_scales = nullptr;
  void* straight = nullptr;    // [rows, columns], contiguous
  void* transposed = nullptr;  // [columns, transposed_width], rows `transposed_stride` apart
  std::int64_t transposed_stride = 0;
  std::int64_t transposed_width = 0;  // at least `rows`; what is beyond becomes 0
};

// input · factor, rounded to nearest even as torch's casts do, for factor = largest number of the
// format ÷ largest magnitude, in fp32; no number may be larger than that. A largest magnitude that
// is not finite makes the product of its scale with every number NaN. Nothing is done to an empty
// matrix.
void float8_quantize(const Place& place, const Float8Shape& shape, const Float8Arrays& arrays);

}  // namespace shardwise::kernels
