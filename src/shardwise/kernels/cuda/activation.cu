// A thread makes eight or sixteen elements; a block works on one row, so that gates and values of a
// row are found without a division a thread.
#include <initializer_list>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kThreads = 128;
// Shared memory that a block of the gated backward pass asks for and does not use, in bytes: ten
// blocks on a multiprocessor of an H200 move its five streams a quarter faster than sixteen.
constexpr int kUnused = 20 * 1024;

// x · σ(z) for z(x) with slope dz. The division's error is 2 units in the last place; for an
// infinite divisor it gives 0.
__device__ __forceinline__ void weighted_by_logistic(float x, float z, float dz, float& value,
                                                     float& slope) {
  const float share = __fdividef(1.0F, 1.0F + exp2_of(-kLog2E * z));
  value = x * share;
  // In this order a share of 1 or 0 makes the second term 0, even where x · dz is infinite.
  slope = share + x * (share * (1.0F - share)) * dz;
}

// The standard normal distribution's mass beyond |x|, ½ erfc(|x| / √2), as 2^P(|x|): one
// exponential where erf takes two polynomials and a selection. P is a minimax fit on 0 … 5.5,
// weighted so that the mass is off by at most 1.4e-8 in exact arithmetic; with fp32's roundings by
// 2^-24, and relative to itself by 1e-3 up to |x| = 5. Beyond, it falls to 0 as P falls to −∞.
__device__ __forceinline__ float normal_tail(float x) {
  constexpr float kFit[] = {-1.0F,          -1.1511068F,   -0.45919403F,
                            -0.052545585F,  0.0071463315F, -2.1027643e-4F,
                            -1.5138762e-4F, 3.105843e-5F,  -2.0520895e-6F};
  const float size = fabsf(x);
  float power = kFit[8];
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    power = fmaf(power, size, kFit[i]);
  }
  return exp2_of(power);
}

// f(x) and f'(x).
template <ActivationKind kKind>
__device__ __forceinline__ void activate(float x, float& value, float& slope) {
  constexpr float kTwiceRoot = 1.5957691216057308F;  // 2 √(2/π)
  constexpr float kCubic = 0.044715F;
  constexpr float kDensity = 0.3989422804014327F;  // 1 / √(2π)
  if constexpr (kKind == ActivationKind::kGelu) {
    const float tail = normal_tail(x);
    value = fmaf(-fabsf(x), tail, fmaxf(x, 0.0F));
    const float below = 0.5F + copysignf(0.5F - tail, x);
    slope = fmaf(x * kDensity, exp2_of(x * (x * (-0.5F * kLog2E))), below);
  } else if constexpr (kKind == ActivationKind::kGeluTanh) {
    const float square = x * x;
    weighted_by_logistic(x, kTwiceRoot * (x + kCubic * square * x),
                         kTwiceRoot * (1.0F + 3.0F * kCubic * square), value, slope);
  } else {
    weighted_by_logistic(x, x, 1.0F, value, slope);
  }
}

// body.template operator()<kKind>(): one branch for all of a thread's elements.
template <typename Body>
__device__ __forceinline__ void with_kind(ActivationKind kind, const Body& body) {
  if (kind == ActivationKind::kGelu) {
    body.template operator()<ActivationKind::kGelu>();
  } else if (kind == ActivationKind::kGeluTanh) {
    body.template operator()<ActivationKind::kGeluTanh>();
  } else {
    body.template operator()<ActivationKind::kSilu>();
  }
}

struct Layout {
  ActivationKind kind;
  std::int64_t width;
  unsigned blocks_of_row;
  bool aligned;
};

// Where a thread's elements are: eight at a time, kThreads eights apart.
template <int kVectors>
struct Spot {
  std::int64_t row;
  std::int64_t first;

  __device__ explicit Spot(const Layout& layout) : row(blockIdx.x / layout.blocks_of_row) {
    const std::int64_t block = blockIdx.x % layout.blocks_of_row;
    first = kWide * (block * kVectors * kThreads + threadIdx.x);
  }
  __device__ std::int64_t column(int v) const { return first + v * kWide * kThreads; }
};

// Eights of a thread where rows are read and written once: 32 bytes on their way in a thread fill
// the latency of memory; gated rows and backward passes have as much by their second array.
constexpr int forward_vectors(bool gated) { return gated ? 1 : 2; }

template <typename T, bool kGated>
__global__ __launch_bounds__(kThreads) void forward_kernel(const Layout layout, const T* input,
                                                           T* output) {
  constexpr int kVectors = forward_vectors(kGated);
  const Spot<kVectors> spot(layout);
  const T* from = input + spot.row * layout.width * (kGated ? 2 : 1);
  T* to = output + spot.row * layout.width;
  Packed<T> packed[kVectors] = {};
  Packed<T> factors[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t column = spot.column(v);
    const std::int64_t valid = layout.width - column;
    if (valid > 0) {
      packed[v] = load8(from + column, valid, layout.aligned);
      if constexpr (kGated) {
        factors[v] = load8(from + layout.width + column, valid, layout.aligned);
      }
    }
  }
  with_kind(layout.kind, [&]<ActivationKind kKind>() {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      Floats8 values = unpack(packed[v]);
      const Floats8 by = unpack(factors[v]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        float slope;
        activate<kKind>(values.at[i], values.at[i], slope);
        values.at[i] *= kGated ? by.at[i] : 1.0F;
      }
      packed[v] = pack<T>(values);
    }
  });
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t valid = layout.width - spot.column(v);
    if (valid > 0) {
      store8(packed[v], to + spot.column(v), valid, layout.aligned);
    }
  }
}

template <typename T, bool kGated>
__global__ __launch_bounds__(kThreads) void backward_kernel(const Layout layout, const T* input,
                                                            const T* output_gradient,
                                                            T* input_gradient) {
  const Spot<1> spot(layout);
  const std::int64_t column = spot.column(0);
  const std::int64_t valid = layout.width - column;
  if (valid <= 0) {
    return;
  }
  const std::int64_t start = spot.row * layout.width * (kGated ? 2 : 1) + column;
  Packed<T> packed = load8(input + start, valid, layout.aligned);
  Packed<T> packed_factors = {};
  if constexpr (kGated) {
    packed_factors = load8(input + start + layout.width, valid, layout.aligned);
  }
  const Packed<T> given =
      load8(output_gradient + spot.row * layout.width + column, valid, layout.aligned);
  with_kind(layout.kind, [&]<ActivationKind kKind>() {
    const Floats8 gradients = unpack(given);
    Floats8 values = unpack(packed);
    Floats8 factors = unpack(packed_factors);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      float value;
      float slope;
      activate<kKind>(values.at[i], value, slope);
      values.at[i] = gradients.at[i] * (kGated ? factors.at[i] : 1.0F) * slope;
      factors.at[i] = gradients.at[i] * value;
    }
    packed = pack<T>(values);
    packed_factors = pack<T>(factors);
  });
  store8(packed, input_gradient + start, valid, layout.aligned);
  if constexpr (kGated) {
    store8(packed_factors, input_gradient + start + layout.width, valid, layout.aligned);
  }
}

// Rows without gates are one long row.
struct Plan {
  Layout layout;
  unsigned grid;

  Plan(const ActivationShape& shape, int vectors, std::initializer_list<const void*> arrays) {
    const std::int64_t width = shape.gated ? shape.width : shape.rows * shape.width;
    const std::int64_t per_block = std::int64_t{kWide} * kThreads * vectors;
    layout = {.kind = shape.kind,
              .width = width,
              .blocks_of_row = grid_size((width + per_block - 1) / per_block),
              .aligned = true};
    for (const void* array : arrays) {
      layout.aligned =
          layout.aligned &&
          is_aligned16(array, shape.gated ? shape.width * element_size(shape.dtype) : 0);
    }
    grid = grid_size((shape.gated ? shape.rows : 1) * std::int64_t{layout.blocks_of_row});
  }
};

}  // namespace

void activation_forward(const Place& place, const ActivationShape& shape, const void* input,
                        void* output) {
  const Plan plan(shape, forward_vectors(shape.gated), {input, output});
  with_type(shape.dtype, [&]<typename T>() {
    const auto kernel = shape.gated ? forward_kernel<T, true> : forward_kernel<T, false>;
    kernel<<<plan.grid, kThreads, 0, stream_of(place)>>>(plan.layout, static_cast<const T*>(input),
                                                         static_cast<T*>(output));
  });
  check_launch("activation_forward");
}

void activation_backward(const Place& place, const ActivationShape& shape, const void* input,
                         const void* output_gradient, void* input_gradient) {
  const Plan plan(shape, 1, {input, output_gradient, input_gradient});
  with_type(shape.dtype, [&]<typename T>() {
    const auto kernel = shape.gated ? backward_kernel<T, true> : backward_kernel<T, false>;
    kernel<<<plan.grid, kThreads, shape.gated ? kUnused : 0, stream_of(place)>>>(
        plan.layout, static_cast<const T*>(input), static_cast<const T*>(output_gradient),
        static_cast<T*>(input_gradient));
  });
  check_launch("activation_backward");
}

}  // namespace shardwise::kernels::cuda
