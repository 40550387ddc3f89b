// Cross-entropy against its formula in double, for any place.
#pragma once

#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/kernels/test_place.h"

namespace shardwise::kernels::testing {

struct CrossEntropyCase {
  std::int64_t rows, vocabulary, padding;  // padding: elements after each row
  CrossEntropyRule rule;
  bool weights, factor;
  std::int64_t shift;
};

inline constexpr float kLogitRange = 8.0F;
inline constexpr std::int64_t kIgnored = -100;

struct CrossEntropyInputs {
  Array logits;
  std::vector<std::int64_t> targets;
  std::vector<float> weights;
  float factor = 0.125F;

  CrossEntropyInputs(const CrossEntropyCase& c, DType dtype)
      : logits(random_array(dtype, c.rows * (c.vocabulary + c.padding), 1, -kLogitRange,
                            kLogitRange)) {
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const bool ignored = row % 5 == 3;
      targets.push_back(ignored ? kIgnored : (row * 7919 + c.vocabulary - 1) % c.vocabulary);
      weights.push_back(0.5F + static_cast<float>(row % 3));
    }
  }
};

// Losses and gradients in double. An exponential is off by its argument's two roundings, relative
// to the distance from the largest logit (at most twice the range), and by 4 more. The sum of n of
// them takes 128 + n / 1024 additions one after the other at most: 18 in a thread of 64 logits and
// 16 of their combination; or 10 for every 32 logits of a thread that walks, 16,384 logits of a
// row.
struct CrossEntropyTruth {
  std::vector<Expected> losses, gradients;

  CrossEntropyTruth(const CrossEntropyCase& c, const CrossEntropyInputs& in) {
    const std::int64_t stride = c.vocabulary + c.padding;
    for (std::size_t i = 0; i < in.logits.size(); ++i) {
      gradients.push_back({in.logits.get(i), 0.0});
    }
    for (std::int64_t row = 0; row < c.rows; ++row) {
      add_row(c, in, row, row * stride);
    }
  }

  void add_row(const CrossEntropyCase& c, const CrossEntropyInputs& in, std::int64_t row,
               std::int64_t start) {
    const auto n = static_cast<double>(c.vocabulary);
    const double unit = in.logits.dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24;
    const double smoothing = c.rule.label_smoothing;
    double exponentials = 0.0, mean = 0.0, size = 0.0;
    for (std::int64_t i = 0; i < c.vocabulary; ++i) {
      exponentials += std::exp(in.logits.get(start + i));
      mean += in.logits.get(start + i) / n;
      size += std::abs(in.logits.get(start + i)) / n;
    }
    const bool ignored = in.targets[row] == kIgnored;
    const double weight = ignored ? 0.0 : c.weights ? in.weights[row] : 1.0;
    const double scale = c.factor ? weight * static_cast<double>(in.factor) : weight;
    const double log_sum = std::log(exponentials);
    const double additions = 128 + n / 1024;
    const double log_error = unit * (additions + 4 * kLogitRange + 4 + 2 * std::abs(log_sum));
    const double z_loss = c.rule.z_loss;
    const double at_target = ignored ? 0.0 : in.logits.get(start + in.targets[row]);
    const double terms = std::abs(log_sum) + std::abs(at_target) + z_loss * log_sum * log_sum;
    losses.push_back({weight * (log_sum - (1 - smoothing) * at_target - smoothing * mean +
                                z_loss * log_sum * log_sum),
                      weight * (log_error * (1 + 2 * z_loss * std::abs(log_sum)) +
                                6 * unit * terms + smoothing * (additions + 3) * unit * size)});
    for (std::int64_t i = 0; c.rule.write_gradient && i < c.vocabulary; ++i) {
      const double x = in.logits.get(start + i);
      const double of_softmax = scale * std::exp(x - log_sum) * (1 + 2 * z_loss * log_sum);
      const double here = i == in.targets[row] ? scale * (1 - smoothing) : 0.0;
      const double everywhere = scale * smoothing / n;
      const double off = log_error + unit * (2 * std::abs(x - log_sum) + 10);
      gradients[start + i] = {of_softmax - here - everywhere,
                              std::abs(of_softmax) * off + 6 * unit * (here + everywhere)};
    }
  }
};

inline void check_cross_entropy_case(TestPlace& place, const CrossEntropyCase& c, DType dtype) {
  const CrossEntropyInputs in(c, dtype);
  const CrossEntropyTruth truth(c, in);
  const DType loss_dtype = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
  PlacedArray logits(place, in.logits, c.shift), losses(place, untouched(loss_dtype, c.rows));
  Placed<std::int64_t> targets(place, in.targets);
  Placed<float> weights(place, in.weights), factor(place, {in.factor});
  cross_entropy(place.place,
                {.dtype = dtype,
                 .rows = c.rows,
                 .vocabulary = c.vocabulary,
                 .row_stride = c.vocabulary + c.padding},
                c.rule,
                {.logits = logits.data(),
                 .targets = targets.data(),
                 .weights = c.weights ? weights.data() : nullptr,
                 .factor = c.factor ? factor.data() : nullptr,
                 .losses = losses.data()});
  const std::string what = "vocabulary " + std::to_string(c.vocabulary) + ", dtype " +
                           std::to_string(static_cast<int>(dtype)) + ", shift " +
                           std::to_string(c.shift);
  expect_close(losses.fetch(), truth.losses, what + ", loss");
  expect_close(logits.fetch(), truth.gradients, what);
}

// Logits of −∞ have no share, and wrong targets make NaN of their row only.
inline void check_cross_entropy_extremes(TestPlace& place, std::int64_t vocabulary) {
  Array in(DType::kBFloat16, std::vector<float>(3 * vocabulary, -HUGE_VALF));
  in.set(2, 1.0F);
  in.set(5, 1.0F);
  PlacedArray logits(place, in), losses(place, untouched(DType::kFloat32, 3));
  Placed<std::int64_t> targets(place, {2, vocabulary, -1});
  cross_entropy(place.place,
                {.dtype = in.dtype, .rows = 3, .vocabulary = vocabulary, .row_stride = vocabulary},
                {}, {.logits = logits.data(), .targets = targets.data(), .losses = losses.data()});
  EXPECT_NEAR(losses.fetch().get(0), std::log(2.0), 1e-6);
  EXPECT_TRUE(std::isnan(losses.fetch().get(1)) && std::isnan(losses.fetch().get(2)));
  const Array& gradient = logits.fetch();
  EXPECT_NEAR(gradient.get(2), -0.5, 0x1p-9);
  EXPECT_NEAR(gradient.get(5), 0.5, 0x1p-9);
  EXPECT_EQ(gradient.get(0), 0.0);
  EXPECT_EQ(gradient.get(vocabulary - 1), 0.0);
  EXPECT_TRUE(std::isnan(gradient.get(vocabulary)) && std::isnan(gradient.get(3 * vocabulary - 1)));
}

// One NaN among logits is enough, whatever lies around it.
inline void check_cross_entropy_of_nan(TestPlace& place, std::int64_t vocabulary) {
  constexpr std::int64_t kRows = 3;
  for (DType dtype : place.dtypes()) {
    for (bool write_gradient : {true, false}) {
      Array in(dtype, std::vector<float>(kRows * vocabulary, 0.5F));
      for (std::int64_t i = 8; i < vocabulary; ++i) {
        in.set(i, std::nanf(""));            // half a thread's, or whole blocks of them
        in.set(vocabulary + i, -HUGE_VALF);  // beside one
      }
      in.set(2 * vocabulary - 1, std::nanf(""));
      in.set(2 * vocabulary, std::nanf(""));
      const DType of_losses = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
      PlacedArray logits(place, in), losses(place, untouched(of_losses, kRows));
      Placed<std::int64_t> targets(place, {1, 1, 1});
      cross_entropy(
          place.place,
          {.dtype = dtype, .rows = kRows, .vocabulary = vocabulary, .row_stride = vocabulary},
          {.write_gradient = write_gradient},
          {.logits = logits.data(), .targets = targets.data(), .losses = losses.data()});
      for (std::int64_t row = 0; row < kRows; ++row) {
        EXPECT_TRUE(std::isnan(losses.fetch().get(row)))
            << "row " << row << ", dtype " << static_cast<int>(dtype);
        EXPECT_EQ(std::isnan(logits.fetch().get(row * vocabulary + 1)), write_gradient);
      }
    }
  }
}

inline void check_rescale(TestPlace& place) {
  for (DType dtype : place.dtypes()) {
    for (float factor : {1.0F, 0.3F}) {
      const Array in = random_array(dtype, 5001, 3, -2.0F, 2.0F);
      std::vector<Expected> expected;
      for (std::size_t i = 0; i < in.size(); ++i) {
        const double product = in.get(i) * static_cast<double>(factor);
        expected.push_back({product, 0x1p-24 * std::abs(product)});
      }
      PlacedArray found(place, in, 1);
      Placed<float> by(place, {factor});
      rescale(place.place, found.data(), dtype, 5001, by.data());
      expect_close(found.fetch(), expected, "rescale");
      EXPECT_EQ(found.fetch() == in, factor == 1.0F);
    }
  }
}

inline void check_cross_entropy(TestPlace& place) {
  const CrossEntropyRule plain{};
  const CrossEntropyRule all{.label_smoothing = 0.1, .z_loss = 1e-3};
  const CrossEntropyRule loss_only{.label_smoothing = 0.1, .write_gradient = false};
  const std::vector<CrossEntropyCase> cases = {{0, 5, 0, plain, false, false, 0},
                                               {7, 1, 0, all, true, true, 0},
                                               {9, 13, 3, all, true, true, 0},
                                               {6, 1000, 0, plain, false, true, 0},
                                               {6, 1000, 8, loss_only, true, false, 0},
                                               {4, 50257, 0, all, false, true, 1},
                                               {2, 50257, 7, plain, true, true, 0},
                                               {2, 128256, 0, all, true, true, 0},
                                               {1, 131080, 0, all, false, true, 0},
                                               {1, 300001, 0, plain, false, true, 0},
                                               // More rows than a device works on at a time.
                                               {301, 999, 1, plain, true, true, 0},
                                               {2001, 101, 3, all, true, true, 0},
                                               {151, 33000, 0, all, false, true, 0}};
  for (const CrossEntropyCase& c : cases) {
    for (DType dtype : place.dtypes()) {
      if (c.rows * c.vocabulary < 1'000'000 || dtype == DType::kBFloat16) {
        check_cross_entropy_case(place, c, dtype);
      }
    }
  }
  check_cross_entropy_extremes(place, 10);
  check_cross_entropy_extremes(place, 40000);
  check_cross_entropy_of_nan(place, 13);
  check_cross_entropy_of_nan(place, 40000);
  check_rescale(place);
}

}  // namespace shardwise::kernels::testing
