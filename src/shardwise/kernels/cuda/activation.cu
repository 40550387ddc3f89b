// One thread makes eight elements; a block works on one row, so that gates and values of a row are
// found without a division a thread.
#include <initializer_list>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// x · σ(z) for z(x) with slope dz. The division's error is 2 units in the last place; for an
// infinite divisor it gives 0.
__device__ __forceinline__ void weighted_by_logistic(float x, float z, float dz, float& value,
                                                     float& slope) {
  const float share = __fdividef(1.0F, 1.0F + exp2_of(-kLog2E * z));
  value = x * share;
  // In this order a share of 1 or 0 makes the second term 0, even where x · dz is infinite.
  slope = share + x * (share * (1.0F - share)) * dz;
}

// f(x) and f'(x).
__device__ __forceinline__ void activate(ActivationKind kind, float x, float& value, float& slope) {
  constexpr float kTwiceRoot = 1.5957691216057308F;  // 2 √(2/π)
  constexpr float kCubic = 0.044715F;
  constexpr float kHalfRoot = 0.7071067811865476F;  // √½
  constexpr float kDensity = 0.3989422804014327F;   // 1 / √(2π)
  if (kind == ActivationKind::kGelu) {
    const float below = 0.5F * (1.0F + erff(x * kHalfRoot));
    value = x * below;
    slope = below + x * kDensity * expf(-0.5F * x * x);
  } else if (kind == ActivationKind::kGeluTanh) {
    weighted_by_logistic(x, kTwiceRoot * (x + kCubic * x * x * x),
                         kTwiceRoot * (1.0F + 3.0F * kCubic * x * x), value, slope);
  } else {
    weighted_by_logistic(x, x, 1.0F, value, slope);
  }
}

struct Layout {
  ActivationKind kind;
  std::int64_t width;
  int blocks_of_row;
  bool aligned;
};

// Where a thread's eight elements are.
struct Spot {
  std::int64_t row;
  std::int64_t column;

  __device__ explicit Spot(const Layout& layout) : row(blockIdx.x / layout.blocks_of_row) {
    const std::int64_t block = blockIdx.x % layout.blocks_of_row;
    column = kWide * (block * kThreads + threadIdx.x);
  }
};

template <typename T, bool kGated>
__global__ __launch_bounds__(kThreads) void forward_kernel(const Layout layout, const T* input,
                                                           T* output) {
  const Spot spot(layout);
  const std::int64_t valid = layout.width - spot.column;
  if (valid <= 0) {
    return;
  }
  const T* from = input + spot.row * layout.width * (kGated ? 2 : 1) + spot.column;
  const Packed<T> packed = load8(from, valid, layout.aligned);
  Packed<T> packed_factors;
  if constexpr (kGated) {
    packed_factors = load8(from + layout.width, valid, layout.aligned);
  }
  Floats8 values = unpack(packed);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    float slope;
    activate(layout.kind, values.at[i], values.at[i], slope);
  }
  if constexpr (kGated) {
    const Floats8 factors = unpack(packed_factors);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      values.at[i] *= factors.at[i];
    }
  }
  store8(pack<T>(values), output + spot.row * layout.width + spot.column, valid, layout.aligned);
}

template <typename T, bool kGated>
__global__ __launch_bounds__(kThreads) void backward_kernel(const Layout layout, const T* input,
                                                            const T* output_gradient,
                                                            T* input_gradient) {
  const Spot spot(layout);
  const std::int64_t valid = layout.width - spot.column;
  if (valid <= 0) {
    return;
  }
  const std::int64_t start = spot.row * layout.width * (kGated ? 2 : 1) + spot.column;
  const Packed<T> packed = load8(input + start, valid, layout.aligned);
  Packed<T> packed_factors;
  if constexpr (kGated) {
    packed_factors = load8(input + start + layout.width, valid, layout.aligned);
  }
  const Floats8 gradients =
      unpack(load8(output_gradient + spot.row * layout.width + spot.column, valid, layout.aligned));
  const Floats8 values = unpack(packed);
  Floats8 results;
  Floats8 factors;
  if constexpr (kGated) {
    factors = unpack(packed_factors);
  }
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    float value;
    float slope;
    activate(layout.kind, values.at[i], value, slope);
    results.at[i] = gradients.at[i] * slope;
    if constexpr (kGated) {
      results.at[i] = gradients.at[i] * factors.at[i] * slope;
      factors.at[i] = gradients.at[i] * value;
    }
  }
  store8(pack<T>(results), input_gradient + start, valid, layout.aligned);
  if constexpr (kGated) {
    store8(pack<T>(factors), input_gradient + start + layout.width, valid, layout.aligned);
  }
}

Layout make_layout(const ActivationShape& shape, std::initializer_list<const void*> arrays) {
  const std::int64_t per_block = kWide * kThreads;
  Layout layout{.kind = shape.kind,
                .width = shape.width,
                .blocks_of_row = static_cast<int>((shape.width + per_block - 1) / per_block),
                .aligned = true};
  for (const void* array : arrays) {
    layout.aligned = layout.aligned && is_aligned16(array, shape.width * element_size(shape.dtype));
  }
  return layout;
}

}  // namespace

void activation_forward(const Place& place, const ActivationShape& shape, const void* input,
                        void* output) {
  const Layout layout = make_layout(shape, {input, output});
  const unsigned grid = grid_size(shape.rows * layout.blocks_of_row);
  with_type(shape.dtype, [&]<typename T>() {
    const auto kernel = shape.gated ? forward_kernel<T, true> : forward_kernel<T, false>;
    kernel<<<grid, kThreads, 0, stream_of(place)>>>(layout, static_cast<const T*>(input),
                                                    static_cast<T*>(output));
  });
  check_launch("activation_forward");
}

void activation_backward(const Place& place, const ActivationShape& shape, const void* input,
                         const void* output_gradient, void* input_gradient) {
  const Layout layout = make_layout(shape, {input, output_gradient, input_gradient});
  const unsigned grid = grid_size(shape.rows * layout.blocks_of_row);
  with_type(shape.dtype, [&]<typename T>() {
    const auto kernel = shape.gated ? backward_kernel<T, true> : backward_kernel<T, false>;
    kernel<<<grid, kThreads, 0, stream_of(place)>>>(layout, static_cast<const T*>(input),
                                                    static_cast<const T*>(output_gradient),
                                                    static_cast<T*>(input_gradient));
  });
  check_launch("activation_backward");
}

}  // namespace shardwise::kernels::cuda
