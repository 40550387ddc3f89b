#include "shardwise/kernels/float8.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/kernels/cpu/loops_choice.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/float16.h"
#include "shardwise/kernels/float8_scale.h"

namespace shardwise::kernels {
namespace {

constexpr std::int64_t kGrain = 16384;  // elements, some 50 µs

// A format's numbers.
struct Layout {
  int mantissa;            // bits
  int bias;                // of the exponent
  std::uint32_t beyond;    // the first pattern that is no finite number
  std::uint32_t overflow;  // what numbers too large become
};

Layout layout_of(Float8 format) {
  return format == Float8::kE4m3 ? Layout{3, 7, 0x7F, 0x7F} : Layout{2, 15, 0x7C, 0x7C};
}

// The nearest pattern, ties to even.
std::uint8_t pattern_of(float value, const Layout& layout) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const int dropped = 23 - layout.mantissa;
  const std::uint32_t lowest = static_cast<std::uint32_t>(128 - layout.bias) << 23;  // normal
  std::uint32_t result;
  if (magnitude > 0x7F800000U) {
    result = 0x7FU;
  } else if (magnitude < lowest) {
    // One unit in the last place of this number is the format's smallest step: the adder rounds.
    const std::uint32_t anchor = lowest + (static_cast<std::uint32_t>(dropped) << 23);
    result = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) +
                                          std::bit_cast<float>(anchor)) -
             anchor;
  } else {
    const std::uint32_t half = (1U << (dropped - 1)) - 1U + ((magnitude >> dropped) & 1U);
    const std::uint32_t rebiased = static_cast<std::uint32_t>(127 - layout.bias) << 23;
    result = (magnitude - rebiased + half) >> dropped;
    result = result >= layout.beyond ? layout.overflow : result;
  }
  return static_cast<std::uint8_t>(sign | result);
}

// The order of these is that of magnitudes, with NaN above infinity.
std::uint16_t magnitude_of(BFloat16 value) {
  return static_cast<std::uint16_t>(value.bits & 0x7FFFU);
}

void merge(std::uint16_t largest, float* amax) {
  const std::uint32_t bits = static_cast<std::uint32_t>(largest) << 16;
  *amax = std::bit_cast<float>(std::max(bits, std::bit_cast<std::uint32_t>(*amax)));
}

bool is_empty(const Float8Shape& shape) {
  SW_CHECK(shape.rows >= 0 && shape.columns >= 0 && shape.row_stride >= shape.columns);
  return shape.rows == 0 || shape.columns == 0;
}

const BFloat16* row_of(const Float8Shape& shape, const void* input, std::int64_t row) {
  return static_cast<const BFloat16*>(input) + row * shape.row_stride;
}

// The largest magnitude of each row of [begin, end).
void amax_of_rows(const Float8Shape& shape, const void* input, float* of_rows, std::int64_t begin,
                  std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const BFloat16* from = row_of(shape, input, row);
    std::uint16_t largest = 0;
    for (std::int64_t column = 0; column < shape.columns; ++column) {
      largest = std::max(largest, magnitude_of(from[column]));
    }
    merge(largest, of_rows + row);
  }
}

void write_scales(const Float8Shape& shape, const float* amax, float* scales, std::int64_t count) {
  for (std::int64_t i = 0; scales != nullptr && i < count; ++i) {
    scales[i] = float8_scale(amax[i], shape);
  }
}

// One row of the input: of the straight copy, and as a column of the transposed copy.
void quantize_row(const Float8Shape& shape, const Float8Arrays& a,
                  const std::vector<float>& column_factors, std::int64_t row) {
  const Layout layout = layout_of(shape.format);
  const BFloat16* from = row_of(shape, a.input, row);
  if (a.straight != nullptr) {
    auto* to = static_cast<std::uint8_t*>(a.straight) + row * shape.columns;
    const float factor = float8_factor(a.row_amax[shape.rowwise ? row : 0], shape);
    for (std::int64_t column = 0; column < shape.columns; ++column) {
      to[column] = pattern_of(to_float(from[column]) * factor, layout);
    }
  }
  if (a.transposed != nullptr) {
    auto* to = static_cast<std::uint8_t*>(a.transposed) + row;
    for (std::int64_t column = 0; column < shape.columns; ++column) {
      const float factor = column_factors[shape.rowwise ? column : 0];
      to[column * a.transposed_stride] = pattern_of(to_float(from[column]) * factor, layout);
    }
  }
}

}  // namespace

void float8_amax(const Place& place, const Float8Shape& shape, const void* input, float* of_rows,
                 float* of_columns) {
  if (is_empty(shape)) {
    return;
  }
  if (place.cuda) {
    cuda::float8_amax(place, shape, input, of_rows, of_columns);
    return;
  }
  const std::int64_t grain = 1 + kGrain / shape.columns;
  if (!shape.rowwise) {
    std::vector<float> rows(shape.rows, 0.0F);
    cpu::for_ranges(place, shape.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      amax_of_rows(shape, input, rows.data(), begin, end);
    });
    for (const float of_row : rows) {
      merge(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(of_row) >> 16), of_rows);
    }
    return;
  }
  if (of_rows != nullptr) {
    cpu::for_ranges(place, shape.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      amax_of_rows(shape, input, of_rows, begin, end);
    });
  }
  if (of_columns != nullptr) {
    cpu::for_ranges(place, shape.columns, 1 + kGrain / shape.rows,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t row = 0; row < shape.rows; ++row) {
                        const BFloat16* from = row_of(shape, input, row);
                        for (std::int64_t column = begin; column < end; ++column) {
                          merge(magnitude_of(from[column]), of_columns + column);
                        }
                      }
                    });
  }
}

void float8_quantize(const Place& place, const Float8Shape& shape, const Float8Arrays& a) {
  if (is_empty(shape)) {
    return;
  }
  SW_CHECK(a.transposed == nullptr ||
           (a.transposed_width >= shape.rows && a.transposed_stride >= a.transposed_width));
  if (place.cuda) {
    cuda::float8_quantize(place, shape, a);
    return;
  }
  write_scales(shape, a.row_amax, a.row_scales, shape.rowwise ? shape.rows : 1);
  write_scales(shape, a.column_amax, a.column_scales, shape.rowwise ? shape.columns : 1);
  std::vector<float> column_factors(shape.rowwise ? shape.columns : 1);
  for (std::size_t i = 0; a.transposed != nullptr && i < column_factors.size(); ++i) {
    column_factors[i] = float8_factor(a.column_amax[i], shape);
  }
  cpu::for_ranges(place, shape.rows, 1 + kGrain / shape.columns,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      quantize_row(shape, a, column_factors, row);
                    }
                  });
  const std::int64_t beyond = a.transposed_width - shape.rows;
  for (std::int64_t column = 0; a.transposed != nullptr && column < shape.columns; ++column) {
    std::fill_n(
        static_cast<std::uint8_t*>(a.transposed) + column * a.transposed_stride + shape.rows,
        beyond, std::uint8_t{0});
  }
}

}  // namespace shardwise::kernels
