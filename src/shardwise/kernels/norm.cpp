#include "shardwise/kernels/norm.h"

#include <cmath>

#include "shardwise/base/check.h"
#include "shardwise/kernels/cpu/elements.h"
#include "shardwise/kernels/cpu/loops_choice.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"

namespace shardwise::kernels {
namespace {

using cpu::Compute;
using cpu::load;
using cpu::store;

// Rows a thread takes at least: 16 K elements, above the cost of waking it.
std::int64_t row_grain(const NormShape& shape) { return 1 + 16384 / shape.width; }

void check_shape(const NormShape& shape, const void* bias) {
  SW_CHECK_GE(shape.rows, 0);
  SW_CHECK(shape.width >= 1 && shape.width <= kMaxNormWidth, "width ", shape.width);
  SW_CHECK(shape.weight_dtype == shape.dtype || shape.weight_dtype == DType::kFloat32);
  SW_CHECK(shape.centred || bias == nullptr, "RMSNorm has no bias");
}

template <typename T>
void forward_row(const NormShape& shape, const NormForward& a, const Compute<T>* weight,
                 const Compute<T>* bias, std::int64_t row) {
  const std::int64_t n = shape.width;
  const T* x = static_cast<const T*>(a.input) + row * n;
  if (a.residual != nullptr) {
    const T* residual = static_cast<const T*>(a.residual) + row * n;
    T* sum = static_cast<T*>(a.sum) + row * n;
    for (std::int64_t i = 0; i < n; ++i) {
      store<T>(load(x + i) + load(residual + i), sum + i);
    }
    x = sum;
  }
  double mean = 0.0;
  if (shape.centred) {
    for (std::int64_t i = 0; i < n; ++i) {
      mean += load(x + i);
    }
    mean /= static_cast<double>(n);
    a.mean[row] = static_cast<float>(mean);
  }
  double squares = 0.0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double difference = load(x + i) - mean;
    squares += difference * difference;
  }
  const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(n) + shape.epsilon);
  a.rstd[row] = static_cast<float>(rstd);
  T* output = static_cast<T*>(a.output) + row * n;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto normalised = static_cast<Compute<T>>((load(x + i) - mean) * rstd);
    store<T>(normalised * weight[i] + bias[i], output + i);
  }
}

template <typename T>
void backward_row(const NormShape& shape, const NormBackward& a, const Compute<T>* weight,
                  std::int64_t row) {
  const std::int64_t n = shape.width;
  const T* x = static_cast<const T*>(a.x) + row * n;
  const T* gradient = static_cast<const T*>(a.output_gradient) + row * n;
  const double mean = shape.centred ? a.mean[row] : 0.0;
  const double rstd = a.rstd[row];
  double along = 0.0;    // Σ g · x̂
  double uniform = 0.0;  // Σ g
  for (std::int64_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(load(gradient + i)) * weight[i];
    along += g * (load(x + i) - mean) * rstd;
    uniform += g;
  }
  along /= static_cast<double>(n);
  uniform = shape.centred ? uniform / static_cast<double>(n) : 0.0;
  const T* other = a.sum_gradient == nullptr ? nullptr : static_cast<const T*>(a.sum_gradient);
  T* result = static_cast<T*>(a.input_gradient) + row * n;
  for (std::int64_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(load(gradient + i)) * weight[i];
    const double own = rstd * (g - along * (load(x + i) - mean) * rstd - uniform);
    const double more = other == nullptr ? 0.0 : load(other + row * n + i);
    store<T>(static_cast<Compute<T>>(own + more), result + i);
  }
}

// Gradients of weight and bias for some columns, all rows in order.
template <typename T>
void column_sums(const NormShape& shape, const NormBackward& a, std::int64_t begin,
                 std::int64_t end) {
  std::vector<double> weight(end - begin);
  std::vector<double> bias(end - begin);
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * shape.width;
    const T* gradient = static_cast<const T*>(a.output_gradient) + row * shape.width;
    const double mean = shape.centred ? a.mean[row] : 0.0;
    for (std::int64_t i = begin; i < end; ++i) {
      const double g = load(gradient + i);
      weight[i - begin] += g * (load(x + i) - mean) * a.rstd[row];
      bias[i - begin] += g;
    }
  }
  cpu::with_type(shape.weight_dtype, [&]<typename W>() {
    const auto write = [&](const std::vector<double>& sums, void* to) {
      for (std::int64_t i = begin; to != nullptr && i < end; ++i) {
        store<W>(static_cast<Compute<W>>(sums[i - begin]), static_cast<W*>(to) + i);
      }
    };
    write(weight, a.weight_gradient);
    write(bias, a.bias_gradient);
  });
}

template <typename T>
void backward_on_cpu(const Place& place, const NormShape& shape, const NormBackward& a) {
  // Before the rows, whose results may replace the gradients read here.
  if (a.weight_gradient != nullptr || a.bias_gradient != nullptr) {
    constexpr std::int64_t kColumns = 64;
    cpu::for_ranges(place, shape.width, kColumns, [&](std::int64_t begin, std::int64_t end) {
      column_sums<T>(shape, a, begin, end);
    });
  }
  const auto weight =
      cpu::widened<Compute<T>>(a.weight, shape.weight_dtype, shape.width, Compute<T>(1));
  cpu::for_ranges(place, shape.rows, row_grain(shape), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      backward_row<T>(shape, a, weight.data(), row);
    }
  });
}

}  // namespace

void norm_forward(const Place& place, const NormShape& shape, const NormForward& arrays) {
  check_shape(shape, arrays.bias);
  if (shape.rows == 0) {
    return;
  }
  if (place.cuda) {
    cuda::norm_forward(place, shape, arrays);
    return;
  }
  cpu::with_type(shape.dtype, [&]<typename T>() {
    using C = Compute<T>;
    const auto weight = cpu::widened<C>(arrays.weight, shape.weight_dtype, shape.width, C(1));
    const auto bias = cpu::widened<C>(arrays.bias, shape.weight_dtype, shape.width, C(0));
    cpu::for_ranges(place, shape.rows, row_grain(shape), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        forward_row<T>(shape, arrays, weight.data(), bias.data(), row);
      }
    });
  });
}

void norm_backward(const Place& place, const NormShape& shape, const NormBackward& arrays) {
  check_shape(shape, arrays.bias_gradient);
  if (place.cuda) {
    cuda::norm_backward(place, shape, arrays);
    return;
  }
  cpu::with_type(shape.dtype, [&]<typename T>() { backward_on_cpu<T>(place, shape, arrays); });
}

std::int64_t norm_partials(const Place& place, const NormShape& shape) {
  return place.cuda ? cuda::norm_partials(shape) : 0;
}

}  // namespace shardwise::kernels
