// Matrices in fp8 against the formats' definition, bit by bit, for any place.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardwise/kernels/float8.h"
#include "shardwise/kernels/test_place.h"

namespace shardwise::kernels::testing {

// Value of a pattern without its sign. E4M3 has one NaN and no infinity, E5M2 is like IEEE's.
inline double decode8(int pattern, Float8 format) {
  const int mantissa = format == Float8::kE4m3 ? 3 : 2;
  const int bias = format == Float8::kE4m3 ? 7 : 15;
  const int exponent = pattern >> mantissa;
  const int fraction = pattern & ((1 << mantissa) - 1);
  if (pattern >= (format == Float8::kE4m3 ? 0x7F : 0x7D)) {
    return std::nan("");
  }
  if (format == Float8::kE5m2 && pattern == 0x7C) {
    return HUGE_VAL;
  }
  return exponent == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                       : std::ldexp((1 << mantissa) + fraction, exponent - bias - mantissa);
}

inline int last_finite(Float8 format) { return format == Float8::kE4m3 ? 0x7E : 0x7B; }

// The nearest finite pattern; of two, the even one.
inline std::uint8_t encode8(float value, Float8 format) {
  const double size = std::abs(static_cast<double>(value));
  int best = 0;
  for (int pattern = 1; pattern <= last_finite(format); ++pattern) {
    const double now = std::abs(decode8(pattern, format) - size);
    const double before = std::abs(decode8(best, format) - size);
    best = now < before || (now == before && pattern % 2 == 0) ? pattern : best;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

inline float expected_factor(double amax, const Float8Shape& shape) {
  const auto largest = static_cast<float>(decode8(last_finite(shape.format), shape.format));
  const float factor = largest / std::max(static_cast<float>(amax), 0x1p-100F);
  return shape.rowwise ? std::ldexp(1.0F, std::ilogb(factor)) : factor;
}

struct Float8Case {
  Float8Shape shape;
  std::int64_t padding = 0;  // of the transposed copy's rows: width, and as much of a gap
  std::int64_t shift = 0;    // elements past an aligned address
  std::int64_t parts = 1;    // rows are cut into as many
  float size = 1.0F;         // of the largest numbers
};

inline Array float8_input(const Float8Case& c) {
  Array input = random_array(DType::kBFloat16, c.shape.rows * c.shape.row_stride, 3, -1.0F, 1.0F);
  for (std::int64_t row = 0; row < c.shape.rows; ++row) {
    for (std::int64_t i = 0; i < c.shape.row_stride; ++i) {
      // Rows and columns of other sizes, so that theirs are no one's else; some rows of zeros.
      const float size = c.size * std::exp2(-static_cast<float>((row * 7 + i * 3) % 23));
      const std::int64_t at = row * c.shape.row_stride + i;
      const bool beyond = i >= c.shape.columns;  // between rows: nobody's
      input.set(at,
                row % 9 == 4 ? 0.0F : static_cast<float>(input.get(at)) * (beyond ? 1e6F : size));
    }
  }
  return input;
}

// What float8_amax must give: of rows, of columns, of all.
struct Amax {
  std::vector<float> rows, columns, whole;

  Amax(const Array& input, const Float8Shape& shape)
      : rows(shape.rows, 0.0F), columns(shape.columns, 0.0F), whole(1, 0.0F) {
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      for (std::int64_t i = 0; i < shape.columns; ++i) {
        const auto size = static_cast<float>(std::abs(input.get(row * shape.row_stride + i)));
        rows[row] = std::max(rows[row], size);
        columns[i] = std::max(columns[i], size);
        whole[0] = std::max(whole[0], size);
      }
    }
  }
  const std::vector<float>& of_rows(const Float8Shape& shape) const {
    return shape.rowwise ? rows : whole;
  }
  const std::vector<float>& of_columns(const Float8Shape& shape) const {
    return shape.rowwise ? columns : whole;
  }
};

// The case's matrix in a place, part by part.
class Float8Matrix {
 public:
  Float8Matrix(TestPlace& place, const Float8Case& c, const Array& input)
      : place_(place), case_(c), input_(place, input, c.shift) {}

  // function(shape of a part, its first element, its first row)
  template <typename Function>
  void for_parts(const Function& function) const {
    const std::int64_t step =
        std::max<std::int64_t>((case_.shape.rows + case_.parts - 1) / case_.parts, 1);
    for (std::int64_t row = 0; row == 0 || row < case_.shape.rows; row += step) {
      Float8Shape part = case_.shape;
      part.rows = std::min(step, case_.shape.rows - row);
      function(part,
               static_cast<const char*>(input_.data()) +
                   row * case_.shape.row_stride * element_size(DType::kBFloat16),
               row);
    }
  }

 private:
  TestPlace& place_;
  const Float8Case& case_;
  PlacedArray input_;
};

inline void check_float8_case(TestPlace& place, const Float8Case& c) {
  const Float8Shape& shape = c.shape;
  const Array input = float8_input(c);
  const Float8Matrix matrix(place, c, input);
  const Amax expected(input, shape);
  const std::vector<float>& of_rows = expected.of_rows(shape);
  const std::vector<float>& of_columns = expected.of_columns(shape);
  Placed<float> row_amax(place, std::vector<float>(of_rows.size(), 0.0F));
  Placed<float> column_amax(place, std::vector<float>(of_columns.size(), 0.0F));
  matrix.for_parts([&](const Float8Shape& part, const void* from, std::int64_t row) {
    float8_amax(place.place, part, from, row_amax.data() + (shape.rowwise ? row : 0),
                column_amax.data());
  });
  const std::string what = "rows " + std::to_string(shape.rows) + ", columns " +
                           std::to_string(shape.columns) + (shape.rowwise ? ", rowwise" : "") +
                           ", parts " + std::to_string(c.parts) + ", format " +
                           std::to_string(static_cast<int>(shape.format));
  ASSERT_EQ(row_amax.fetch(), of_rows) << what;
  if (shape.rowwise) {
    ASSERT_EQ(column_amax.fetch(), of_columns) << what;
  }

  const std::int64_t width = shape.rows + c.padding, stride = width + c.padding;
  Placed<float> row_scales(place, std::vector<float>(of_rows.size(), -1.0F));
  Placed<float> column_scales(place, std::vector<float>(of_columns.size(), -1.0F));
  Placed<std::uint8_t> straight(place, std::vector<std::uint8_t>(shape.rows * shape.columns, 0xEE));
  Placed<std::uint8_t> transposed(place, std::vector<std::uint8_t>(shape.columns * stride, 0xEE));
  matrix.for_parts([&](const Float8Shape& part, const void* from, std::int64_t row) {
    const bool last = row + part.rows == shape.rows;
    const std::int64_t own = shape.rowwise ? row : 0;
    float8_quantize(place.place, part,
                    {.input = from,
                     .row_amax = row_amax.data() + own,
                     .column_amax = shape.rowwise ? column_amax.data() : row_amax.data(),
                     .row_scales = row_scales.data() + own,
                     .column_scales = column_scales.data(),
                     .straight = straight.data() + row * shape.columns,
                     .transposed = transposed.data() + row,
                     .transposed_stride = stride,
                     .transposed_width = last ? width - row : part.rows});
  });
  straight.fetch();
  transposed.fetch();
  const auto scales_of = [&](const std::vector<float>& all) {
    std::vector<float> scales;
    for (const float amax : all) {  // an empty matrix leaves them as they were
      scales.push_back(shape.rows == 0 ? -1.0F : 1.0F / expected_factor(amax, shape));
    }
    return scales;
  };
  const std::vector<float> expected_rows = scales_of(of_rows);
  const std::vector<float> expected_columns = scales_of(of_columns);
  EXPECT_EQ(row_scales.fetch(), expected_rows) << what;
  EXPECT_EQ(column_scales.fetch(), expected_columns) << what;
  const std::vector<std::uint8_t>& rows = straight.fetch();
  const std::vector<std::uint8_t>& columns = transposed.fetch();
  for (std::int64_t i = 0; i < shape.columns; ++i) {
    for (std::int64_t row = 0; row < stride; ++row) {
      const int found = columns[i * stride + row];
      if (row >= shape.rows) {
        ASSERT_EQ(found, row < width ? 0 : 0xEE) << what << ", beyond row " << row;
        continue;
      }
      const auto value = static_cast<float>(input.get(row * shape.row_stride + i));
      const float by_row = expected_factor(of_rows[shape.rowwise ? row : 0], shape);
      const float by_column = expected_factor(of_columns[shape.rowwise ? i : 0], shape);
      ASSERT_EQ(rows[row * shape.columns + i], encode8(value * by_row, shape.format))
          << what << ", row " << row << ", column " << i;
      ASSERT_EQ(found, encode8(value * by_column, shape.format))
          << what << ", transposed, row " << row << ", column " << i;
    }
  }
}

// Numbers that are not finite reach every product that they are in: times the scale all are NaN.
inline void check_float8_not_finite(TestPlace& place, const Float8Shape& shape, float bad) {
  const std::int64_t bad_row = 2, bad_column = 5;
  Float8Case c{.shape = shape, .padding = 3};
  Array input = float8_input(c);
  input.set(bad_row * shape.row_stride + bad_column, bad);
  PlacedArray from(place, input);
  Placed<float> rows(place, std::vector<float>(shape.rows, 0.0F));
  Placed<float> columns(place, std::vector<float>(shape.columns, 0.0F));
  float8_amax(place.place, shape, from.data(), rows.data(), columns.data());
  Placed<float> row_scales(place, std::vector<float>(shape.rows, 1.0F));
  Placed<float> column_scales(place, std::vector<float>(shape.columns, 1.0F));
  const std::int64_t stride = shape.rows + c.padding;
  Placed<std::uint8_t> straight(place, std::vector<std::uint8_t>(shape.rows * shape.columns));
  Placed<std::uint8_t> transposed(place, std::vector<std::uint8_t>(shape.columns * stride));
  float8_quantize(place.place, shape,
                  {.input = from.data(),
                   .row_amax = rows.data(),
                   .column_amax = shape.rowwise ? columns.data() : rows.data(),
                   .row_scales = row_scales.data(),
                   .column_scales = column_scales.data(),
                   .straight = straight.data(),
                   .transposed = transposed.data(),
                   .transposed_stride = stride,
                   .transposed_width = stride});
  straight.fetch();
  transposed.fetch();
  const auto is_nan = [&](int pattern, float scale) {
    return std::isnan(decode8(pattern & 0x7F, shape.format) * scale);
  };
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    for (std::int64_t i = 0; i < shape.columns; ++i) {
      EXPECT_EQ(is_nan(straight.fetch()[row * shape.columns + i],
                       row_scales.fetch()[shape.rowwise ? row : 0]),
                !shape.rowwise || row == bad_row)
          << bad << " in " << row << ", " << i;
      EXPECT_EQ(is_nan(transposed.fetch()[i * stride + row],
                       column_scales.fetch()[shape.rowwise ? i : 0]),
                !shape.rowwise || i == bad_column)
          << bad << " in " << row << ", " << i << ", transposed";
    }
    for (std::int64_t i = 0; i < shape.columns; ++i) {
      for (std::int64_t beyond = shape.rows; beyond < stride; ++beyond) {
        EXPECT_EQ(transposed.fetch()[i * stride + beyond], 0);
      }
    }
  }
}

inline void check_float8(TestPlace& place) {
  for (Float8 format : {Float8::kE4m3, Float8::kE5m2}) {
    for (bool rowwise : {false, true}) {
      const auto shape = [&](std::int64_t rows, std::int64_t columns, std::int64_t stride) {
        return Float8Shape{rows, columns, stride, format, rowwise};
      };
      check_float8_case(place, {.shape = shape(1, 1, 1)});
      check_float8_case(place, {.shape = shape(0, 8, 8)});
      check_float8_case(place, {.shape = shape(3, 13, 17), .padding = 5, .shift = 1});
      check_float8_case(place, {.shape = shape(16, 16, 16), .parts = 2});
      check_float8_case(place, {.shape = shape(67, 40, 48), .padding = 13, .parts = 3});
      check_float8_case(place, {.shape = shape(130, 272, 272), .padding = 14});
      check_float8_case(place, {.shape = shape(256, 128, 264), .size = 0x1p100F});
      check_float8_case(place, {.shape = shape(48, 256, 256), .parts = 3, .size = 0x1p-90F});
      for (float bad : {std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity(), std::nanf("")}) {
        check_float8_not_finite(place, shape(11, 24, 24), bad);
      }
    }
  }
}

}  // namespace shardwise::kernels::testing
