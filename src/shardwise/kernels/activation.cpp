#include "shardwise/kernels/activation.h"

#include <cmath>
#include <numbers>

#include "shardwise/base/check.h"
#include "shardwise/kernels/cpu/elements.h"
#include "shardwise/kernels/cpu/loops_choice.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"

namespace shardwise::kernels {
namespace {

using cpu::Compute;

// f(x) and f'(x).
template <typename C>
struct Valued {
  C value;
  C slope;
};

// x · σ(z) for z(x) with slope dz.
template <typename C>
Valued<C> weighted_by_logistic(C x, C z, C dz) {
  const C share = C(1) / (C(1) + std::exp(-z));
  // In this order a share of 1 or 0 makes the second term 0, even where x · dz is infinite.
  return {x * share, share + x * (share * (C(1) - share)) * dz};
}

template <ActivationKind kKind, typename C>
Valued<C> activate(C x) {
  if constexpr (kKind == ActivationKind::kSilu) {
    return weighted_by_logistic(x, x, C(1));
  } else if constexpr (kKind == ActivationKind::kGeluTanh) {
    constexpr C kFactor = C(2) * std::numbers::sqrt2_v<C> * std::numbers::inv_sqrtpi_v<C>;
    constexpr C kCubic = C(0.044715);
    return weighted_by_logistic(x, kFactor * (x + kCubic * x * x * x),
                                kFactor * (C(1) + C(3) * kCubic * x * x));
  } else {
    constexpr C kRoot = C(1) / std::numbers::sqrt2_v<C>;
    constexpr C kDensity = kRoot * std::numbers::inv_sqrtpi_v<C>;
    const C below = C(0.5) * (C(1) + std::erf(x * kRoot));
    return {x * below, below + x * kDensity * std::exp(C(-0.5) * x * x)};
  }
}

template <typename Body>
void with_kind(ActivationKind kind, const Body& body) {
  switch (kind) {
    case ActivationKind::kSilu: return body.template operator()<ActivationKind::kSilu>();
    case ActivationKind::kGelu: return body.template operator()<ActivationKind::kGelu>();
    case ActivationKind::kGeluTanh: return body.template operator()<ActivationKind::kGeluTanh>();
  }
}

// element.template operator()<T, kKind>(row, column) for all elements of the output.
template <typename Element>
void for_elements(const Place& place, const ActivationShape& shape, const Element& element) {
  constexpr std::int64_t kGrain = 8192;  // some 50 µs
  cpu::with_type(shape.dtype, [&]<typename T>() {
    with_kind(shape.kind, [&]<ActivationKind kKind>() {
      cpu::for_ranges(place, shape.rows, 1 + kGrain / shape.width,
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t row = begin; row < end; ++row) {
                          for (std::int64_t column = 0; column < shape.width; ++column) {
                            element.template operator()<T, kKind>(row, column);
                          }
                        }
                      });
    });
  });
}

bool is_empty(const ActivationShape& shape) {
  SW_CHECK(shape.rows >= 0 && shape.width >= 0);
  return shape.rows == 0 || shape.width == 0;
}

}  // namespace

void activation_forward(const Place& place, const ActivationShape& shape, const void* input,
                        void* output) {
  if (is_empty(shape)) {
    return;
  }
  if (place.cuda) {
    cuda::activation_forward(place, shape, input, output);
    return;
  }
  const std::int64_t n = shape.width;
  const std::int64_t stride = shape.gated ? 2 * n : n;
  for_elements(place, shape,
               [&]<typename T, ActivationKind kKind>(std::int64_t row, std::int64_t i) {
                 const T* x = static_cast<const T*>(input) + row * stride + i;
                 const Compute<T> f = activate<kKind>(cpu::load(x)).value;
                 cpu::store<T>(shape.gated ? f * cpu::load(x + n) : f,
                               static_cast<T*>(output) + row * n + i);
               });
}

void activation_backward(const Place& place, const ActivationShape& shape, const void* input,
                         const void* output_gradient, void* input_gradient) {
  if (is_empty(shape)) {
    return;
  }
  if (place.cuda) {
    cuda::activation_backward(place, shape, input, output_gradient, input_gradient);
    return;
  }
  const std::int64_t n = shape.width;
  const std::int64_t stride = shape.gated ? 2 * n : n;
  for_elements(
      place, shape, [&]<typename T, ActivationKind kKind>(std::int64_t row, std::int64_t i) {
        const T* x = static_cast<const T*>(input) + row * stride + i;
        T* to = static_cast<T*>(input_gradient) + row * stride + i;
        const Compute<T> g = cpu::load(static_cast<const T*>(output_gradient) + row * n + i);
        const Valued<Compute<T>> f = activate<kKind>(cpu::load(x));
        if (shape.gated) {
          const Compute<T> value = cpu::load(x + n);
          cpu::store<T>(g * f.value, to + n);
          cpu::store<T>(g * value * f.slope, to);
        } else {
          cpu::store<T>(g * f.slope, to);
        }
      });
}

}  // namespace shardwise::kernels
