// A row belongs to 1 … 16 warps, which hold it in registers: 32 elements a thread. Loads and stores
// are all the memory traffic: a row is read once and written once.
#include <algorithm>
#include <initializer_list>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kVectors = 4;  // of eight elements in each thread
constexpr int kElementsPerWarp = kWarp * kVectors * kWide;
constexpr int kMaxThreads = 512;  // 128 registers a thread
constexpr int kMaxWarps = kMaxThreads / kWarp;
// Two blocks on each of the 132 multiprocessors of an H100; the partials of more would cost traffic
// of their own.
constexpr std::int64_t kMaxBackwardBlocks = 264;
constexpr int kSumRows = 16;

// The warps of one row, and the place of a thread in it.
struct RowGroup {
  int warps;
  int group;  // rows of a block are worked on by different groups
  int warp;
  int lane;

  __device__ explicit RowGroup(int warps)
      : warps(warps),
        group(static_cast<int>(threadIdx.x) / kWarp / warps),
        warp(static_cast<int>(threadIdx.x) / kWarp % warps),
        lane(static_cast<int>(threadIdx.x) % kWarp) {}

  // First column of a thread's vector v; a warp's accesses are whole lines.
  __device__ int column(int v) const { return kWide * ((v * warps + warp) * kWarp + lane); }
};

// Where the warps of a row meet. Two sides by turns: a thread that writes a side again has passed
// the barrier of the other, which all reach after they read this one.
template <int kCount>
struct Meeting {
  float sums[2][kMaxWarps][kCount];
};

// Sums over the threads of a row, in an order that depends on nothing but the row's width.
template <int kCount>
__device__ __forceinline__ void row_sums(float (&values)[kCount], const RowGroup& group,
                                         Meeting<kCount>& meeting, int& side) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] += __shfl_xor_sync(0xFFFFFFFFU, values[i], offset);
    }
  }
  if (group.warps == 1) {
    return;
  }
  const int first = group.group * group.warps;
  if (group.lane == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      meeting.sums[side][first + group.warp][i] = values[i];
    }
  }
  // Barriers 1 … 15: one for each group (0 is __syncthreads).
  asm volatile("bar.sync %0, %1;" ::"r"(group.group + 1), "r"(group.warps * kWarp) : "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = 0.0F;
    for (int warp = 0; warp < group.warps; ++warp) {
      values[i] += meeting.sums[side][first + warp][i];
    }
  }
  side ^= 1;
}

// What a launch is told besides the arrays.
struct Layout {
  std::int64_t rows;
  int width;
  int warps;     // of a row
  bool aligned;  // all rows
  float epsilon;
  bool weight_is_float;
};

// Eight elements of weight or bias; `absent` without.
template <typename T>
__device__ __forceinline__ Floats8 load_weight(const void* weight, const Layout& layout, int column,
                                               float absent) {
  if (weight == nullptr) {
    Floats8 values;
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      values.at[i] = absent;
    }
    return values;
  }
  const int valid = layout.width - column;
  if (layout.weight_is_float) {
    return unpack(load8(static_cast<const float*>(weight) + column, valid, layout.aligned));
  }
  return unpack(load8(static_cast<const T*>(weight) + column, valid, layout.aligned));
}

template <typename T, bool kCentred>
__global__ __launch_bounds__(kMaxThreads) void forward_kernel(const Layout layout,
                                                              const NormForward a) {
  __shared__ Meeting<1> meeting;
  int side = 0;
  const RowGroup group(layout.warps);
  const int groups = static_cast<int>(blockDim.x) / kWarp / layout.warps;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * groups + group.group;
  if (row >= layout.rows) {
    return;  // the whole group
  }
  const std::int64_t start = row * layout.width;
  Packed<T> x[kVectors];
  Packed<T> residual[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = group.column(v);
    const int valid = layout.width - column;
    x[v] = Packed<T>{};
    if (valid > 0) {
      x[v] = load8(static_cast<const T*>(a.input) + start + column, valid, layout.aligned);
      if (a.residual != nullptr) {
        residual[v] =
            load8(static_cast<const T*>(a.residual) + start + column, valid, layout.aligned);
      }
    }
  }
  float sum[1] = {0.0F};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = group.column(v);
    const int valid = layout.width - column;
    if (valid > 0 && a.residual != nullptr) {
      Floats8 values = unpack(x[v]);
      const Floats8 more = unpack(residual[v]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        values.at[i] += more.at[i];
      }
      x[v] = pack<T>(values);
      store8(x[v], static_cast<T*>(a.sum) + start + column, valid, layout.aligned);
    }
    const Floats8 values = unpack(x[v]);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      sum[0] += kCentred ? values.at[i] : values.at[i] * values.at[i];
    }
  }
  row_sums(sum, group, meeting, side);
  const float count = static_cast<float>(layout.width);
  float mean = 0.0F;
  if constexpr (kCentred) {
    mean = sum[0] / count;
    sum[0] = 0.0F;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int valid = layout.width - group.column(v);
      const Floats8 values = unpack(x[v]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const float difference = i < valid ? values.at[i] - mean : 0.0F;
        sum[0] += difference * difference;
      }
    }
    row_sums(sum, group, meeting, side);
  }
  const float rstd = rsqrtf(sum[0] / count + layout.epsilon);
  if (group.warp == 0 && group.lane == 0) {
    a.rstd[row] = rstd;
    if (kCentred) {
      a.mean[row] = mean;
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = group.column(v);
    const int valid = layout.width - column;
    if (valid > 0) {
      const Floats8 weight = load_weight<T>(a.weight, layout, column, 1.0F);
      const Floats8 bias = load_weight<T>(a.bias, layout, column, 0.0F);
      Floats8 values = unpack(x[v]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        values.at[i] = (values.at[i] - mean) * rstd * weight.at[i] + bias.at[i];
      }
      store8(pack<T>(values), static_cast<T*>(a.output) + start + column, valid, layout.aligned);
    }
  }
}

// Sums over the rows that one thread has seen, of each of its columns, in shared memory: registers
// are better spent on rows on their way. No other thread touches them before write(), and a warp's
// accesses are without bank conflicts.
class ColumnSums {
 public:
  __device__ ColumnSums(float4* shared, int which)
      : slots_(shared + which * 2 * kVectors * static_cast<int>(blockDim.x)) {
    for (int i = 0; i < 2 * kVectors; ++i) {
      slots_[i * blockDim.x + threadIdx.x] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    }
  }
  __device__ __forceinline__ void add(int v, const Floats8& values) {
    float4& low = slots_[2 * v * blockDim.x + threadIdx.x];
    float4& high = slots_[(2 * v + 1) * blockDim.x + threadIdx.x];
    low = make_float4(low.x + values.at[0], low.y + values.at[1], low.z + values.at[2],
                      low.w + values.at[3]);
    high = make_float4(high.x + values.at[4], high.y + values.at[5], high.z + values.at[6],
                       high.w + values.at[7]);
  }
  // Adds the block's groups in order. After __syncthreads().
  __device__ void write(const RowGroup& group, int groups, int width, float* partials) const {
    if (group.group != 0) {
      return;
    }
    for (int i = 0; i < kVectors * kWide; ++i) {
      const int column = group.column(i / kWide) + i % kWide;
      float sum = 0.0F;
      for (int g = 0; g < groups && column < width; ++g) {
        const int thread = static_cast<int>(threadIdx.x) + g * group.warps * kWarp;
        const float4* slot = slots_ + i / 4 * blockDim.x + thread;
        sum += reinterpret_cast<const float*>(slot)[i % 4];
      }
      if (column < width) {
        partials[column] = sum;
      }
    }
  }

 private:
  float4* slots_;
};

// Of a block, in bytes.
int column_sum_bytes(int threads, bool centred) {
  return threads * kVectors * kWide * static_cast<int>(sizeof(float)) * (centred ? 2 : 1);
}

template <typename T, bool kCentred>
__global__ __launch_bounds__(kMaxThreads) void backward_kernel(const Layout layout,
                                                               const NormBackward a) {
  extern __shared__ float4 shared[];
  __shared__ Meeting<2> meeting;
  int side = 0;
  const RowGroup group(layout.warps);
  const int groups = static_cast<int>(blockDim.x) / kWarp / layout.warps;
  ColumnSums weight_sums(shared, 0);
  ColumnSums bias_sums(shared, kCentred ? 1 : 0);
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * groups + group.group;
       row < layout.rows; row += static_cast<std::int64_t>(gridDim.x) * groups) {
    const std::int64_t start = row * layout.width;
    Packed<T> x[kVectors];
    Packed<T> gradient[kVectors];
    Packed<T> other[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = group.column(v);
      const int valid = layout.width - column;
      x[v] = Packed<T>{};
      gradient[v] = Packed<T>{};
      other[v] = Packed<T>{};
      if (valid > 0) {
        x[v] = load8(static_cast<const T*>(a.x) + start + column, valid, layout.aligned);
        gradient[v] =
            load8(static_cast<const T*>(a.output_gradient) + start + column, valid, layout.aligned);
        if (a.sum_gradient != nullptr) {
          other[v] =
              load8(static_cast<const T*>(a.sum_gradient) + start + column, valid, layout.aligned);
        }
      }
    }
    const float mean = kCentred ? a.mean[row] : 0.0F;
    const float rstd = a.rstd[row];
    float sums[2] = {0.0F, 0.0F};  // Σ g · x̂ and Σ g
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = group.column(v);
      if (column < layout.width) {
        const Floats8 weight = load_weight<T>(a.weight, layout, column, 1.0F);
        const Floats8 values = unpack(x[v]);
        const Floats8 gradients = unpack(gradient[v]);
        Floats8 products;
#pragma unroll
        for (int i = 0; i < kWide; ++i) {  // beyond the row's end the gradient is 0
          products.at[i] = gradients.at[i] * ((values.at[i] - mean) * rstd);
          sums[0] += products.at[i] * weight.at[i];
          sums[1] += gradients.at[i] * weight.at[i];
        }
        weight_sums.add(v, products);
        if constexpr (kCentred) {
          bias_sums.add(v, gradients);
        }
      }
    }
    row_sums(sums, group, meeting, side);
    const float along = sums[0] / static_cast<float>(layout.width);
    const float uniform = kCentred ? sums[1] / static_cast<float>(layout.width) : 0.0F;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = group.column(v);
      const int valid = layout.width - column;
      if (valid > 0) {
        const Floats8 weight = load_weight<T>(a.weight, layout, column, 1.0F);
        const Floats8 values = unpack(x[v]);
        const Floats8 more = unpack(other[v]);
        Floats8 gradients = unpack(gradient[v]);
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          const float normalised = (values.at[i] - mean) * rstd;
          const float g = gradients.at[i] * weight.at[i];
          gradients.at[i] = rstd * (g - along * normalised - uniform) + more.at[i];
        }
        store8(pack<T>(gradients), static_cast<T*>(a.input_gradient) + start + column, valid,
               layout.aligned);
      }
    }
  }
  __syncthreads();
  if (a.partials != nullptr) {
    float* partials = a.partials + static_cast<std::int64_t>(blockIdx.x) * layout.width;
    weight_sums.write(group, groups, layout.width, partials);
    if constexpr (kCentred) {
      partials += static_cast<std::int64_t>(gridDim.x) * layout.width;
      bias_sums.write(group, groups, layout.width, partials);
    }
  }
}

// Sums the blocks' partials; blockIdx.y 0: weight, 1: bias.
__global__ __launch_bounds__(kWarp* kSumRows) void sum_partials_kernel(const float* partials,
                                                                       int count, int width,
                                                                       DType dtype, void* weight,
                                                                       void* bias) {
  __shared__ float sums[kSumRows][kWarp];
  const int column = static_cast<int>(blockIdx.x) * kWarp + static_cast<int>(threadIdx.x);
  const float* from = partials + static_cast<std::int64_t>(blockIdx.y) * count * width;
  float sum = 0.0F;
  if (column < width) {
#pragma unroll 4
    for (int row = static_cast<int>(threadIdx.y); row < count; row += kSumRows) {
      sum += from[static_cast<std::int64_t>(row) * width + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  void* to = blockIdx.y == 0 ? weight : bias;
  if (threadIdx.y != 0 || column >= width || to == nullptr) {
    return;
  }
  for (int row = 1; row < kSumRows; ++row) {
    sum += sums[row][threadIdx.x];
  }
  switch (dtype) {
    case DType::kFloat16: return from_float32(sum, static_cast<Half*>(to) + column);
    case DType::kBFloat16: return from_float32(sum, static_cast<BFloat16*>(to) + column);
    default: return from_float32(sum, static_cast<float*>(to) + column);
  }
}

int warps_of_row(std::int64_t width) {
  int warps = 1;
  while (static_cast<std::int64_t>(warps) * kElementsPerWarp < width) {
    warps *= 2;
  }
  return warps;
}

int block_threads(int warps) { return std::max(256, warps * kWarp); }

std::int64_t blocks_for(const NormShape& shape) {
  const int warps = warps_of_row(shape.width);
  const std::int64_t groups = block_threads(warps) / kWarp / warps;
  return (shape.rows + groups - 1) / groups;
}

std::int64_t backward_blocks(const NormShape& shape) {
  return std::min(blocks_for(shape), kMaxBackwardBlocks);
}

Layout make_layout(const NormShape& shape, std::initializer_list<const void*> rows,
                   std::initializer_list<const void*> weights) {
  Layout layout{.rows = shape.rows,
                .width = static_cast<int>(shape.width),
                .warps = warps_of_row(shape.width),
                .aligned = true,
                .epsilon = static_cast<float>(shape.epsilon),
                .weight_is_float = shape.weight_dtype == DType::kFloat32};
  for (const void* array : rows) {
    layout.aligned = layout.aligned && is_aligned16(array, shape.width * element_size(shape.dtype));
  }
  for (const void* array : weights) {
    layout.aligned = layout.aligned && is_aligned16(array, 0);
  }
  return layout;
}

}  // namespace

void norm_forward(const Place& place, const NormShape& shape, const NormForward& a) {
  const Layout layout =
      make_layout(shape, {a.input, a.residual, a.sum, a.output}, {a.weight, a.bias});
  const unsigned grid = grid_size(blocks_for(shape));
  const int threads = block_threads(layout.warps);
  with_type(shape.dtype, [&]<typename T>() {
    const auto kernel = shape.centred ? forward_kernel<T, true> : forward_kernel<T, false>;
    kernel<<<grid, threads, 0, stream_of(place)>>>(layout, a);
  });
  check_launch("norm_forward");
}

void norm_backward(const Place& place, const NormShape& shape, const NormBackward& a) {
  const bool sums = a.weight_gradient != nullptr || a.bias_gradient != nullptr;
  SW_CHECK(!sums || a.partials != nullptr, "gradients of the weight need partials");
  const Layout layout =
      make_layout(shape, {a.output_gradient, a.sum_gradient, a.x, a.input_gradient}, {a.weight});
  const std::int64_t blocks = backward_blocks(shape);
  NormBackward arrays = a;
  arrays.partials = sums ? a.partials : nullptr;
  if (blocks > 0) {
    with_type(shape.dtype, [&]<typename T>() {
      const auto kernel = shape.centred ? backward_kernel<T, true> : backward_kernel<T, false>;
      const int threads = block_threads(layout.warps);
      const int bytes = column_sum_bytes(threads, shape.centred);
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "norm_backward");
      kernel<<<grid_size(blocks), threads, bytes, stream_of(place)>>>(layout, arrays);
    });
    check_launch("norm_backward");
  }
  if (sums) {
    const dim3 grid(grid_size((shape.width + kWarp - 1) / kWarp), shape.centred ? 2 : 1);
    sum_partials_kernel<<<grid, dim3(kWarp, kSumRows), 0, stream_of(place)>>>(
        a.partials, static_cast<int>(blocks), layout.width, shape.weight_dtype, a.weight_gradient,
        a.bias_gradient);
    check_launch("norm_backward sums");
  }
}

std::int64_t norm_partials(const NormShape& shape) {
  return std::max<std::int64_t>(backward_blocks(shape), 1) * shape.width * (shape.centred ? 2 : 1);
}

}  // namespace shardwise::kernels::cuda
