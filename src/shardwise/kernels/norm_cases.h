// Norms against their formulas in double, for any place.
#pragma once

#include "shardwise/kernels/norm.h"
#include "shardwise/kernels/test_place.h"

namespace shardwise::kernels::testing {

struct NormCase {
  std::int64_t rows;
  std::int64_t width;
  bool centred;
  bool residual;
  bool weights;      // false: null weight and bias
  bool fp32_weight;  // in a model of 16 bits
  std::int64_t shift;
};

// Roundings of fp32 on the way of one element: a thread adds 32 in a row at most (forward 8, and
// then 8 such sums), then 5 shuffles and up to 16 warps follow, and about ten operations on the
// sum. The CPU adds in double.
inline constexpr double kNormRoundings = 64 * 0x1p-24;

inline std::string describe(const NormCase& c, DType dtype) {
  return "rows " + std::to_string(c.rows) + ", width " + std::to_string(c.width) +
         (c.centred ? ", centred" : "") + (c.residual ? ", residual" : "") + ", dtype " +
         std::to_string(static_cast<int>(dtype)) + ", shift " + std::to_string(c.shift);
}

// One row's statistics in double.
struct RowStatistics {
  double mean = 0.0;
  double rstd = 0.0;
  double size = 0.0;  // mean of |x|

  RowStatistics(const Array& x, const NormCase& c, std::int64_t row, double epsilon) {
    const auto n = static_cast<double>(c.width);
    for (std::int64_t i = 0; i < c.width; ++i) {
      mean += c.centred ? x.get(row * c.width + i) / n : 0.0;
      size += std::abs(x.get(row * c.width + i)) / n;
    }
    double variance = 0.0;
    for (std::int64_t i = 0; i < c.width; ++i) {
      const double difference = x.get(row * c.width + i) - mean;
      variance += difference * difference / n;
    }
    rstd = 1.0 / std::sqrt(variance + epsilon);
  }
};

struct NormInputs {
  Array x, residual, weight, bias;
  DType weight_dtype;

  NormInputs(const NormCase& c, DType dtype)
      : x(random_array(dtype, c.rows * c.width, 1, -2.0F, 3.0F)),
        residual(random_array(dtype, c.rows * c.width, 2, -1.0F, 1.0F)),
        weight_dtype(c.fp32_weight ? DType::kFloat32 : dtype) {
    weight = random_array(weight_dtype, c.width, 3, 0.5F, 1.5F);
    bias = random_array(weight_dtype, c.width, 4, -0.5F, 0.5F);
  }
  double weight_at(const NormCase& c, std::int64_t i) const {
    return c.weights ? weight.get(i) : 1.0;
  }
  double bias_at(const NormCase& c, std::int64_t i) const {
    return c.weights && c.centred ? bias.get(i) : 0.0;
  }
};

inline NormShape norm_shape(const NormCase& c, const NormInputs& in) {
  return {.centred = c.centred,
          .rows = c.rows,
          .width = c.width,
          .epsilon = 1e-5,
          .dtype = in.x.dtype,
          .weight_dtype = in.weight_dtype};
}

inline void check_norm_forward(TestPlace& place, const NormCase& c, DType dtype) {
  const NormInputs in(c, dtype);
  const std::int64_t n = c.rows * c.width;
  PlacedArray x(place, in.x, c.shift), residual(place, in.residual, c.shift);
  PlacedArray weight(place, in.weight), bias(place, in.bias);
  PlacedArray sum(place, untouched(dtype, n), c.shift), output(place, untouched(dtype, n), c.shift);
  Placed<float> mean(place, std::vector<float>(c.rows)), rstd(place, std::vector<float>(c.rows));
  norm_forward(place.place, norm_shape(c, in),
               {.input = x.data(),
                .residual = c.residual ? residual.data() : nullptr,
                .weight = c.weights ? weight.data() : nullptr,
                .bias = c.weights && c.centred ? bias.data() : nullptr,
                .sum = c.residual ? sum.data() : nullptr,
                .output = output.data(),
                .mean = c.centred ? mean.data() : nullptr,
                .rstd = rstd.data()});
  Array summed = in.x;
  for (std::int64_t i = 0; c.residual && i < n; ++i) {
    if (dtype != DType::kFloat64) {
      summed.set(i, static_cast<float>(in.x.get(i)) + static_cast<float>(in.residual.get(i)));
    }
  }
  if (c.residual && dtype != DType::kFloat64) {
    ASSERT_TRUE(sum.fetch() == summed) << describe(c, dtype);
  } else if (c.residual) {
    summed = sum.fetch();
    for (std::int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(summed.get(i), in.x.get(i) + in.residual.get(i));
    }
  }
  std::vector<Expected> expected;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const RowStatistics s(summed, c, row, 1e-5);
    const double stats_error = kNormRoundings * s.size;
    if (c.centred) {
      ASSERT_NEAR(mean.fetch()[row], s.mean, stats_error);
    }
    ASSERT_NEAR(rstd.fetch()[row], s.rstd, kNormRoundings * s.rstd * (1 + s.size * s.rstd));
    for (std::int64_t i = 0; i < c.width; ++i) {
      const double value = summed.get(row * c.width + i);
      const double weight_i = in.weight_at(c, i);
      const double bias_i = in.bias_at(c, i);
      const double size = (std::abs(value) + s.size) * s.rstd * std::abs(weight_i);
      expected.push_back({(value - s.mean) * s.rstd * weight_i + bias_i,
                          kNormRoundings * (size + std::abs(bias_i))});
    }
  }
  expect_close(output.fetch(), expected, describe(c, dtype));
}

// What a backward pass must give.
struct NormGradients {
  std::vector<Expected> input, weight, bias;
};

inline NormGradients norm_gradients(const NormCase& c, const NormInputs& in, const Array& gradient,
                                    const std::vector<float>& mean,
                                    const std::vector<float>& rstd) {
  NormGradients result;
  result.weight.resize(c.width);
  result.bias.resize(c.width);
  const auto n = static_cast<double>(c.width);
  // Rows are added up one by one at worst.
  const double roundings = kNormRoundings + static_cast<double>(c.rows) * 0x1p-24;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const double m = c.centred ? mean[row] : 0.0;
    const double r = rstd[row];
    double along = 0.0, along_size = 0.0, uniform = 0.0, uniform_size = 0.0;
    for (std::int64_t i = 0; i < c.width; ++i) {
      const std::int64_t at = row * c.width + i;
      const double x = in.x.get(at);
      const double g = gradient.get(at) * in.weight_at(c, i);
      along += g * (x - m) * r / n;
      along_size += std::abs(g) * (std::abs(x) + std::abs(m)) * r / n;
      uniform += g / n;
      uniform_size += std::abs(g) / n;
    }
    for (std::int64_t i = 0; i < c.width; ++i) {
      const std::int64_t at = row * c.width + i;
      const double g = gradient.get(at) * in.weight_at(c, i);
      const double normalised = (in.x.get(at) - m) * r;
      const double normalised_size = (std::abs(in.x.get(at)) + std::abs(m)) * r;
      const double other = c.residual ? in.residual.get(at) : 0.0;
      const double own = r * (g - along * normalised - (c.centred ? uniform : 0.0));
      const double size =
          r * (std::abs(g) + along_size * normalised_size + (c.centred ? uniform_size : 0.0));
      result.input.push_back({own + other, kNormRoundings * (size + std::abs(other))});
      result.weight[i].value += gradient.get(at) * normalised;
      result.weight[i].error += roundings * std::abs(gradient.get(at)) * normalised_size;
      result.bias[i].value += gradient.get(at);
      result.bias[i].error += roundings * std::abs(gradient.get(at));
    }
  }
  return result;
}

inline void check_norm_backward(TestPlace& place, const NormCase& c, DType dtype) {
  const NormInputs in(c, dtype);  // `residual` is the gradient that comes by the other way
  const std::int64_t n = c.rows * c.width;
  const Array gradient = random_array(dtype, n, 5, -1.0F, 1.0F);
  std::vector<float> mean_of_rows, rstd_of_rows;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const RowStatistics s(in.x, c, row, 1e-5);
    mean_of_rows.push_back(static_cast<float>(s.mean));
    rstd_of_rows.push_back(static_cast<float>(s.rstd));
  }
  const NormShape shape = norm_shape(c, in);
  PlacedArray x(place, in.x, c.shift), other(place, in.residual, c.shift);
  PlacedArray given(place, gradient, c.shift), weight(place, in.weight);
  PlacedArray found(place, untouched(dtype, n), c.shift);
  PlacedArray weight_gradient(place, untouched(in.weight_dtype, c.width));
  PlacedArray bias_gradient(place, untouched(in.weight_dtype, c.width));
  Placed<float> mean(place, mean_of_rows), rstd(place, rstd_of_rows);
  Placed<float> partials(place, std::vector<float>(norm_partials(place.place, shape), -77.0F));
  NormBackward arrays{.output_gradient = given.data(),
                      .sum_gradient = c.residual ? other.data() : nullptr,
                      .x = x.data(),
                      .weight = c.weights ? weight.data() : nullptr,
                      .mean = c.centred ? mean.data() : nullptr,
                      .rstd = rstd.data(),
                      .input_gradient = found.data(),
                      .weight_gradient = weight_gradient.data(),
                      .bias_gradient = c.centred ? bias_gradient.data() : nullptr,
                      .partials = partials.data()};
  norm_backward(place.place, shape, arrays);
  const NormGradients expected = norm_gradients(c, in, gradient, mean_of_rows, rstd_of_rows);
  const std::string what = describe(c, dtype);
  expect_close(found.fetch(), expected.input, what);
  expect_close(weight_gradient.fetch(), expected.weight, what + ", weight");
  if (c.centred) {
    expect_close(bias_gradient.fetch(), expected.bias, what + ", bias");
  }
  // The sums have one order, and the result may replace a gradient.
  const Array first = weight_gradient.fetch();
  const Array apart = found.fetch();
  arrays.input_gradient = given.data();
  norm_backward(place.place, shape, arrays);
  EXPECT_TRUE(weight_gradient.fetch() == first) << what;
  EXPECT_TRUE(given.fetch() == apart) << what;
}

inline void check_norms(TestPlace& place) {
  const std::vector<NormCase> cases = {
      {0, 8, true, true, true, false, 0},       {1, 1, false, false, true, false, 0},
      {3, 7, true, true, true, false, 0},       {5, 8, false, true, true, false, 1},
      {9, 130, true, false, false, false, 0},   {4, 1000, false, true, true, true, 0},
      {3, 1024, true, true, true, false, 0},    {2, 2049, false, true, true, false, 0},
      {17, 2048, false, true, true, false, 0},  {5, 4096, true, false, true, true, 0},
      {3, 8192, false, true, false, false, 0},  {2, 16384, true, true, true, false, 0},
      {2, 16381, false, true, true, false, 0},  {3000, 24, true, true, true, false, 0},
      {700, 2048, false, true, true, false, 0}, {701, 2048, false, false, true, false, 0},
      {7, 1536, true, false, false, false, 0},  {450, 4104, true, true, true, false, 0},
      {3, 2049, true, true, true, true, 1},     {2, 16381, true, false, true, true, 0},
      {3, 4096, true, true, true, false, 1}};
  for (const NormCase& c : cases) {
    for (DType dtype : place.dtypes()) {
      if (c.rows * c.width < 1'000'000 || dtype == DType::kBFloat16) {
        check_norm_forward(place, c, dtype);
        check_norm_backward(place, c, dtype);
      }
    }
  }
}

}  // namespace shardwise::kernels::testing
