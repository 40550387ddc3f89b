#include "shardwise/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardwise/base/check.h"
#include "shardwise/kernels/cpu/elements.h"
#include "shardwise/kernels/cpu/loops_choice.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"

namespace shardwise::kernels {
namespace {

using cpu::Compute;

// Sums over one row of logits.
struct RowSums {
  double log_sum = 0.0;  // log Σ exp x
  double mean = 0.0;     // of x; only where labels are smoothed
};

template <typename T>
RowSums sum_row(const T* x, std::int64_t n, bool needs_mean) {
  using C = Compute<T>;
  C largest = -std::numeric_limits<C>::infinity();
  for (std::int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, cpu::load(x + i));
  }
  const C shift = std::isinf(largest) && largest < 0 ? C(0) : largest;
  double exponentials = 0.0;
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) {
    exponentials += std::exp(cpu::load(x + i) - shift);
    sum += needs_mean ? cpu::load(x + i) : C(0);
  }
  return {shift + std::log(exponentials), sum / static_cast<double>(n)};
}

template <typename T>
void do_row(const CrossEntropyShape& shape, const CrossEntropyRule& rule,
            const CrossEntropyArrays& a, std::int64_t row) {
  using C = Compute<T>;
  const std::int64_t n = shape.vocabulary;
  T* x = static_cast<T*>(a.logits) + row * shape.row_stride;
  C* loss = static_cast<C*>(a.losses) + row;
  const std::int64_t target = a.targets[row];
  const bool outside = target < 0 || target >= n;
  if (target == rule.ignored || outside) {
    *loss = target == rule.ignored ? C(0) : std::numeric_limits<C>::quiet_NaN();
    for (std::int64_t i = 0; rule.write_gradient && i < n; ++i) {
      cpu::store<T>(*loss, x + i);
    }
    return;
  }
  const double smoothing = rule.label_smoothing;
  const RowSums sums = sum_row(x, n, smoothing != 0.0);
  const double weight = a.weights == nullptr ? 1.0 : a.weights[row];
  const double at_target = cpu::load(x + target);
  *loss =
      static_cast<C>(weight * (sums.log_sum - (1.0 - smoothing) * at_target -
                               smoothing * sums.mean + rule.z_loss * sums.log_sum * sums.log_sum));
  if (!rule.write_gradient) {
    return;
  }
  const double scale = a.factor == nullptr ? weight : weight * *a.factor;
  const C of_softmax = static_cast<C>(scale * (1.0 + 2.0 * rule.z_loss * sums.log_sum));
  const C everywhere = static_cast<C>(scale * smoothing / static_cast<double>(n));
  const C here = static_cast<C>(scale * (1.0 - smoothing));
  const C log_sum = static_cast<C>(sums.log_sum);
  for (std::int64_t i = 0; i < n; ++i) {
    const C gradient = of_softmax * std::exp(cpu::load(x + i) - log_sum) - everywhere;
    cpu::store<T>(i == target ? gradient - here : gradient, x + i);
  }
}

}  // namespace

void cross_entropy(const Place& place, const CrossEntropyShape& shape, const CrossEntropyRule& rule,
                   const CrossEntropyArrays& arrays) {
  SW_CHECK_GE(shape.rows, 0);
  SW_CHECK(shape.vocabulary >= 1 && shape.vocabulary <= kMaxVocabulary, "vocabulary ",
           shape.vocabulary);
  SW_CHECK_GE(shape.row_stride, shape.vocabulary);
  if (shape.rows == 0) {
    return;
  }
  if (place.cuda) {
    cuda::cross_entropy(place, shape, rule, arrays);
    return;
  }
  const std::int64_t grain = 1 + 8192 / shape.vocabulary;  // some 50 µs
  cpu::with_type(shape.dtype, [&]<typename T>() {
    cpu::for_ranges(place, shape.rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        do_row<T>(shape, rule, arrays, row);
      }
    });
  });
}

void rescale(const Place& place, void* array, DType dtype, std::int64_t n, const float* factor) {
  SW_CHECK_GE(n, 0);
  if (n == 0) {
    return;
  }
  if (place.cuda) {
    cuda::rescale(place, array, dtype, n, factor);
    return;
  }
  if (*factor == 1.0F) {
    return;
  }
  constexpr std::int64_t kGrain = 32768;
  cpu::with_type(dtype, [&]<typename T>() {
    T* elements = static_cast<T*>(array);
    cpu::for_ranges(place, n, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        cpu::store<T>(cpu::load(elements + i) * *factor, elements + i);
      }
    });
  });
}

}  // namespace shardwise::kernels
