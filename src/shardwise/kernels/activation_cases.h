// Activation functions against their formulas in double, for any place.
#pragma once

#include "shardwise/kernels/activation.h"
#include "shardwise/kernels/test_place.h"

namespace shardwise::kernels::testing {

// f and f' at one point. `error` and `slope_error` bound what fp32 may be off before rounding, for
// exponentials and error functions within 4 half units in the last place and quotients within 4:
// - x · σ(z): z carries up to 6 roundings, so exp(−z) is off by 6|z| + 4 and σ by 10 + 6|z|,
// relative
//   to itself; 1 − σ in the slope cancels, so its error counts in full.
// - Φ is half of 1 + erf, off by 5 in absolute terms.
struct ActivationPoint {
  double value, slope, error, slope_error;
};

inline ActivationPoint activation_point(ActivationKind kind, double x, double unit) {
  if (kind == ActivationKind::kGelu) {
    const double below = 0.5 * std::erfc(-x * std::sqrt(0.5));
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::acos(-1.0));
    return {x * below, below + x * density, 6 * unit * std::abs(x),
            unit * (6 + std::abs(x) * density * (10 + 2 * x * x))};
  }
  const double factor = 2.0 * std::sqrt(2.0 / std::acos(-1.0));
  const bool silu = kind == ActivationKind::kSilu;
  const double z = silu ? x : factor * (x + 0.044715 * x * x * x);
  const double dz = silu ? 1.0 : factor * (1.0 + 3.0 * 0.044715 * x * x);
  const double share = 1.0 / (1.0 + std::exp(-z));
  const double off = unit * (12 + 6 * std::abs(z));
  // A quotient by more than 2^126 may become 0.
  return {x * share, share + x * dz * share * (1.0 - share), off * share * std::abs(x) + 0x1p-110,
          off * share * (1 + 3 * std::abs(x * dz)) + 0x1p-110};
}

inline void check_activation_case(TestPlace& place, ActivationShape shape, std::int64_t shift) {
  const double unit = shape.dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24;
  const std::int64_t n = shape.rows * shape.width;
  const std::int64_t stride = shape.gated ? 2 * shape.width : shape.width;
  Array input = random_array(shape.dtype, shape.rows * stride, 1, -6.0F, 6.0F);
  const float large = shape.dtype == DType::kFloat16 ? 9e3F : 1e15F;
  const float extremes[] = {0.0F, -0.0F, 100.0F, -100.0F, -30.0F, 12.0F, large, -large};
  for (std::int64_t i = 0; i < 8 && i < n; ++i) {
    input.set(i, extremes[i]);
  }
  const Array gradient = random_array(shape.dtype, n, 2, -1.0F, 1.0F);
  std::vector<Expected> output, input_gradient(shape.rows * stride);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t at = i / shape.width * stride + i % shape.width;
    const ActivationPoint p = activation_point(shape.kind, input.get(at), unit);
    const double g = gradient.get(i);
    const double factor = shape.gated ? input.get(at + shape.width) : 1.0;
    const double two = 2 * unit;  // products with gradient and value
    output.push_back({p.value * factor, std::abs(factor) * (p.error + unit * std::abs(p.value))});
    input_gradient[at] = {g * factor * p.slope,
                          std::abs(g * factor) * (p.slope_error + two * std::abs(p.slope))};
    if (shape.gated) {
      input_gradient[at + shape.width] = {g * p.value,
                                          std::abs(g) * (p.error + two * std::abs(p.value))};
    }
  }
  const std::string what = "kind " + std::to_string(static_cast<int>(shape.kind)) + ", gated " +
                           std::to_string(static_cast<int>(shape.gated)) + ", width " +
                           std::to_string(shape.width) + ", dtype " +
                           std::to_string(static_cast<int>(shape.dtype));
  PlacedArray x(place, input, shift), given(place, gradient, shift);
  PlacedArray y(place, untouched(shape.dtype, n), shift);
  activation_forward(place.place, shape, x.data(), y.data());
  expect_close(y.fetch(), output, what);
  activation_backward(place.place, shape, x.data(), given.data(), x.data());
  expect_close(x.fetch(), input_gradient, what + ", gradient");
}

inline void check_activations(TestPlace& place) {
  for (ActivationKind kind :
       {ActivationKind::kSilu, ActivationKind::kGelu, ActivationKind::kGeluTanh}) {
    for (bool gated : {false, true}) {
      for (DType dtype : place.dtypes()) {
        check_activation_case(place, {kind, gated, dtype, 0, 8}, 0);
        check_activation_case(place, {kind, gated, dtype, 1, 1}, 0);
        check_activation_case(place, {kind, gated, dtype, 3, 13}, 0);
        check_activation_case(place, {kind, gated, dtype, 4, 24}, 1);
        check_activation_case(place, {kind, gated, dtype, 5, 2056}, 0);
      }
    }
  }
}

}  // namespace shardwise::kernels::testing
