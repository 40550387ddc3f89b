// Two forms of the same rows:
// - A row belongs to 1 … 16 warps, which hold it in registers: 16 elements a thread, 32 where rows
//   are wider than 8192. Blocks stay and take row after row; the next one is on its way while one
//   is worked on. Rows are read once and written once.
// - Rows that 16-byte accesses do not fit, and fp32 beyond 8192: a block reads a row several times,
//   element by element.
// Gradients of weight and bias are summed by every block over its rows, and over blocks by a second
// kernel, so that sums have one order.
#include <algorithm>
#include <initializer_list>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr std::int64_t kNarrow = kThreads * 2 * kWide;  // rows that 16 elements a thread hold
// Forward, where rows fit: three blocks on a multiprocessor, of 80 registers a thread. Four of 64
// were 8 % slower on an H200.
constexpr int kForwardThreads = 256;
constexpr int kForwardBlocks = 3;
constexpr int kSumRows = 16;
constexpr int kSumsAhead = 9;  // with kSumRows, more than the blocks on an H100: all loads at once

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

  __device__ int groups() const { return static_cast<int>(blockDim.x) / kWarp / warps; }
  __device__ bool is_first() const { return warp == 0 && lane == 0; }
  // First column of a thread's vector v; a warp's accesses are whole lines.
  __device__ int column(int v) const { return kWide * ((v * warps + warp) * kWarp + lane); }
  // The group's first row, and the distance to its next. Neighbours are worked on at a time, and
  // rows that are left over at the end are spread over multiprocessors.
  __device__ std::int64_t first_row() const {
    return blockIdx.x + static_cast<std::int64_t>(gridDim.x) * group;
  }
  __device__ std::int64_t row_step() const {
    return static_cast<std::int64_t>(gridDim.x) * groups();
  }
};

// Where the warps of a row meet. Two sides by turns: a thread that writes a side again has passed
// the barrier of the other, which all reach after they read this one.
template <int kCount>
struct Meeting {
  float sums[2][kWarps][kCount];
};

// Sums over the threads of a row, in an order that depends on nothing but the row's width; the same
// in every thread.
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
  wait_for_threads(group.group + 1, group.warps * kWarp);
  const int other = first + (group.lane & (group.warps - 1));
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = meeting.sums[side][other][i];
  }
  for (int offset = group.warps / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] += __shfl_xor_sync(0xFFFFFFFFU, values[i], offset);
    }
  }
  side ^= 1;
}

// What a launch is told besides the arrays.
struct Layout {
  std::int64_t rows;
  int width;
  int warps;  // of a row
  float epsilon;
  bool centred;
  bool weight_is_float;
};

// A thread's part of a row; zeros beyond the row's end.
template <typename T, int kVectors>
struct Part {
  Packed<T> at[kVectors];
};

// A thread's columns.
template <typename T, int kVectors>
struct Columns {
  int apart;  // from one vector to the next
  bool inside[kVectors];

  __device__ __forceinline__ Columns(const RowGroup& group, int width)
      : apart(group.column(1) - group.column(0)) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      inside[v] = group.column(v) < width;
    }
  }
  // `place` is where the thread's first element of a row is in an array of rows.
  __device__ __forceinline__ void load(const void* rows, std::int64_t place,
                                       Part<T, kVectors>& to) const {
    const T* from = static_cast<const T*>(rows) + place;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      to.at[v] = inside[v] ? load8(from + v * apart) : Packed<T>{};
    }
  }
  __device__ __forceinline__ void store(const Packed<T>& packed, void* rows, std::int64_t place,
                                        int v) const {
    if (inside[v]) {
      store8(packed, static_cast<T*>(rows) + place + v * apart);
    }
  }
};

// Whether the next row's loads fit into registers beside the present one's.
template <typename T, int kVectors>
inline constexpr bool kLoadsAhead = kVectors * sizeof(T) <= 4;

// What forward and backward share: the rows of a group, one after the other. take() gives a row's
// parts of two arrays, of which the second may be null, and asks for the next row's; its result is
// the row's place (see Columns).
template <typename T, int kVectors>
class Rows {
 public:
  __device__ __forceinline__ Rows(const Layout& layout, const RowGroup& group, const void* one,
                                  const void* two)
      : columns(group, layout.width),
        one_(one),
        two_(two),
        left_(layout.rows - group.first_row()),
        step_(group.row_step()),
        row_(group.first_row()),
        place_(row_ * layout.width + group.column(0)),
        place_step_(step_ * layout.width) {
    if (kLoadsAhead<T, kVectors> && any()) {
      load();
    }
  }
  __device__ __forceinline__ bool any() const { return left_ > 0; }
  // Of the row that is taken next.
  __device__ __forceinline__ std::int64_t row() const { return row_; }
  __device__ __forceinline__ std::int64_t take(Part<T, kVectors>& first,
                                               Part<T, kVectors>& second) {
    if (!kLoadsAhead<T, kVectors>) {
      load();
    }
    first = ahead_[0];
    second = ahead_[1];
    const std::int64_t taken = place_;
    row_ += step_;
    left_ -= step_;
    place_ += place_step_;
    if (kLoadsAhead<T, kVectors> && any()) {
      load();
    }
    return taken;
  }

  const Columns<T, kVectors> columns;

 private:
  __device__ __forceinline__ void load() {
    columns.load(one_, place_, ahead_[0]);
    if (two_ != nullptr) {
      columns.load(two_, place_, ahead_[1]);
    }
  }
  const void* one_;
  const void* two_;
  std::int64_t left_;
  std::int64_t step_;
  std::int64_t row_;
  std::int64_t place_;
  std::int64_t place_step_;
  Part<T, kVectors> ahead_[2] = {};
};

__device__ __forceinline__ Floats8 from_slots(const float4& low, const float4& high) {
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

// Weight or bias as floats in shared memory, where a warp reads whole lines. All groups of a block
// have the same columns.
class Weights {
 public:
  __device__ Weights(float4* slots, const RowGroup& group)
      : slots_(slots + group.warp * kWarp + group.lane), step_(group.warps * kWarp) {}

  // By the block's first group; __syncthreads() follows.
  template <typename T, int kVectors>
  __device__ __forceinline__ void fill(const void* from, const Layout& layout,
                                       const RowGroup& group, float absent) {
    for (int v = 0; v < kVectors && group.group == 0; ++v) {
      Floats8 values = {{absent, absent, absent, absent, absent, absent, absent, absent}};
      const int column = group.column(v);
      if (from != nullptr && column < layout.width) {
        values = layout.weight_is_float ? unpack(load8(static_cast<const float*>(from) + column))
                                        : unpack(load8(static_cast<const T*>(from) + column));
      }
      slots_[2 * v * step_] = make_float4(values.at[0], values.at[1], values.at[2], values.at[3]);
      slots_[(2 * v + 1) * step_] =
          make_float4(values.at[4], values.at[5], values.at[6], values.at[7]);
    }
  }
  __device__ __forceinline__ Floats8 at(int v) const {
    return from_slots(slots_[2 * v * step_], slots_[(2 * v + 1) * step_]);
  }

 private:
  float4* slots_;
  int step_;
};

// Of the weights of a row, in bytes.
template <int kVectors>
int weight_bytes(int warps) {
  return warps * kWarp * kVectors * kWide * static_cast<int>(sizeof(float));
}

// Mean and 1 / √(variance + epsilon) of a row.
template <typename T, int kVectors, bool kCentred>
__device__ __forceinline__ float2 statistics(const Part<T, kVectors>& x, const Layout& layout,
                                             const RowGroup& group, Meeting<1>& meeting,
                                             int& side) {
  const float share = 1.0F / static_cast<float>(layout.width);
  float mean = 0.0F;
  if constexpr (kCentred) {
    float sum[1] = {0.0F};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Floats8 values = unpack(x.at[v]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        sum[0] += values.at[i];
      }
    }
    row_sums(sum, group, meeting, side);
    mean = sum[0] * share;
  }
  float squares[1] = {0.0F};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const Floats8 values = unpack(x.at[v]);
    if (!kCentred || group.column(v) < layout.width) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const float difference = values.at[i] - mean;
        squares[0] += difference * difference;
      }
    }
  }
  row_sums(squares, group, meeting, side);
  return {mean, rsqrtf(squares[0] * share + layout.epsilon)};
}

template <typename T, int kVectors, bool kCentred>
__global__ __launch_bounds__(kThreads) void forward_kernel(const Layout layout,
                                                           const NormForward a) {
  extern __shared__ float4 shared[];
  __shared__ Meeting<1> meeting;
  int side = 0;
  const RowGroup group(layout.warps);
  wait_for_kernel_before();
  let_kernel_behind_begin();
  Rows<T, kVectors> rows(layout, group, a.input, a.residual);
  Weights weights(shared, group);
  Weights biases(shared + 2 * kVectors * layout.warps * kWarp, group);
  weights.fill<T, kVectors>(a.weight, layout, group, 1.0F);
  if (a.bias != nullptr) {
    biases.fill<T, kVectors>(a.bias, layout, group, 0.0F);
  }
  __syncthreads();
  while (rows.any()) {
    Part<T, kVectors> x;
    Part<T, kVectors> residual;
    const std::int64_t row = rows.row();
    const std::int64_t place = rows.take(x, residual);
    if (a.residual != nullptr) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        Floats8 values = unpack(x.at[v]);
        const Floats8 more = unpack(residual.at[v]);
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          values.at[i] += more.at[i];
        }
        x.at[v] = pack<T>(values);
        rows.columns.store(x.at[v], a.sum, place, v);
      }
    }
    const float2 s = statistics<T, kVectors, kCentred>(x, layout, group, meeting, side);
    const float rstd = s.y;
    const float shift = -s.x * rstd;
    if (group.is_first()) {
      a.rstd[row] = rstd;
      if (kCentred) {
        a.mean[row] = s.x;
      }
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Floats8 weight = weights.at(v);
      Floats8 values = unpack(x.at[v]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        values.at[i] =
            (kCentred ? fmaf(values.at[i], rstd, shift) : values.at[i] * rstd) * weight.at[i];
      }
      if (a.bias != nullptr) {
        const Floats8 bias = biases.at(v);
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          values.at[i] += bias.at[i];
        }
      }
      rows.columns.store(pack<T>(values), a.output, place, v);
    }
  }
}

// Adds the sums of a block's threads over its groups, in order, into a row of partials. All threads
// call it, and __syncthreads() comes before it.
template <int kVectors>
__device__ __forceinline__ void write_column_sums(const float (&sums)[kVectors][kWide],
                                                  float4* shared, const RowGroup& group, int width,
                                                  float* partials) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const float* s = sums[v];
    shared[2 * v * kThreads + threadIdx.x] = make_float4(s[0], s[1], s[2], s[3]);
    shared[(2 * v + 1) * kThreads + threadIdx.x] = make_float4(s[4], s[5], s[6], s[7]);
  }
  __syncthreads();
  for (int slot = group.group; slot < 2 * kVectors; slot += group.groups()) {
    const float4* from = shared + slot * kThreads + group.warp * kWarp + group.lane;
    float4 sum = *from;
    for (int other = 1; other < group.groups(); ++other) {
      const float4 more = from[other * group.warps * kWarp];
      sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
    }
    const int column = group.column(slot / 2) + slot % 2 * 4;
    if (column < width) {
      *reinterpret_cast<float4*>(partials + column) = sum;
    }
  }
}

// What forward has left for a row: x̂ = (x − mean) · rstd.
struct Statistics {
  float mean = 0.0F;
  float rstd = 0.0F;

  __device__ __forceinline__ void load(const NormBackward& a, bool centred, std::int64_t row) {
    rstd = a.rstd[row];
    mean = centred ? a.mean[row] : 0.0F;
  }
};

// Sums over the rows that a thread has seen are kept in its registers.
template <typename T, int kVectors, bool kCentred>
__global__ __launch_bounds__(kThreads, 1) void backward_kernel(const Layout layout,
                                                               const NormBackward a) {
  extern __shared__ float4 shared[];  // weights, then sums
  __shared__ Meeting<kCentred ? 2 : 1> meeting;
  int side = 0;
  const RowGroup group(layout.warps);
  wait_for_kernel_before();
  let_kernel_behind_begin();
  Rows<T, kVectors> rows(layout, group, a.x, a.output_gradient);
  Weights weights(shared, group);
  weights.fill<T, kVectors>(a.weight, layout, group, 1.0F);
  __syncthreads();
  const float share = 1.0F / static_cast<float>(layout.width);
  float weight_sums[kVectors][kWide] = {};
  float bias_sums[kCentred ? kVectors : 1][kWide] = {};
  Statistics next;
  if (rows.any()) {
    next.load(a, kCentred, rows.row());
  }
  while (rows.any()) {
    Part<T, kVectors> x;
    Part<T, kVectors> gradient;
    Part<T, kVectors> other = {};
    const std::int64_t place = rows.take(x, gradient);
    const Statistics s = next;
    if (rows.any()) {
      next.load(a, kCentred, rows.row());
    }
    if (a.sum_gradient != nullptr) {
      rows.columns.load(a.sum_gradient, place, other);
    }
    float sums[kCentred ? 2 : 1] = {};  // Σ g · x̂ and Σ g · rstd
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Floats8 weight = weights.at(v);
      const Floats8 values = unpack(x.at[v]);
      const Floats8 gradients = unpack(gradient.at[v]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {  // beyond the row's end the gradient is 0
        const float centred = kCentred ? values.at[i] - s.mean : values.at[i];
        const float scaled = gradients.at[i] * s.rstd;
        const float g = scaled * weight.at[i];
        sums[0] = fmaf(g, centred, sums[0]);
        weight_sums[v][i] = fmaf(scaled, centred, weight_sums[v][i]);
        if constexpr (kCentred) {
          sums[1] += g;
          bias_sums[v][i] += gradients.at[i];
        }
      }
    }
    row_sums(sums, group, meeting, side);
    const float along = -s.rstd * s.rstd * (sums[0] * share);
    const float uniform = kCentred ? -sums[kCentred ? 1 : 0] * share : 0.0F;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (kVectors > 2) {  // the registers are needed for the sums
        forget(x.at[v]);
        forget(gradient.at[v]);
      }
      const Floats8 weight = weights.at(v);
      const Floats8 values = unpack(x.at[v]);
      const Floats8 more = unpack(other.at[v]);
      Floats8 gradients = unpack(gradient.at[v]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const float centred = kCentred ? values.at[i] - s.mean : values.at[i];
        const float g = gradients.at[i] * s.rstd * weight.at[i];
        gradients.at[i] = fmaf(along, centred, g + uniform) + more.at[i];
      }
      rows.columns.store(pack<T>(gradients), a.input_gradient, place, v);
    }
  }
  if (a.partials != nullptr) {
    float* partials = a.partials + static_cast<std::int64_t>(blockIdx.x) * layout.width;
    __syncthreads();  // the weights are read
    write_column_sums<kVectors>(weight_sums, shared, group, layout.width, partials);
    if constexpr (kCentred) {
      partials += static_cast<std::int64_t>(gridDim.x) * layout.width;
      __syncthreads();
      write_column_sums<kVectors>(bias_sums, shared, group, layout.width, partials);
    }
  }
}

// An element of weight or bias, one by one.
template <typename T>
__device__ __forceinline__ float weight_at(const void* from, const Layout& layout, int column,
                                           float absent) {
  if (from == nullptr) {
    return absent;
  }
  return layout.weight_is_float ? static_cast<const float*>(from)[column]
                                : to_float32(static_cast<const T*>(from)[column]);
}

template <typename T>
__global__ __launch_bounds__(kThreads) void plain_forward_kernel(const Layout layout,
                                                                 const NormForward a) {
  __shared__ Meeting<1> meeting;
  wait_for_kernel_before();
  int side = 0;
  const RowGroup group(kWarps);
  const int thread = static_cast<int>(threadIdx.x);
  const float share = 1.0F / static_cast<float>(layout.width);
  for (std::int64_t row = group.first_row(); row < layout.rows; row += group.row_step()) {
    const std::int64_t start = row * layout.width;
    const T* x = static_cast<const T*>(a.input) + start;
    if (a.residual != nullptr) {  // a thread reads what it wrote itself
      T* sum = static_cast<T*>(a.sum) + start;
      const T* residual = static_cast<const T*>(a.residual) + start;
      for (int i = thread; i < layout.width; i += kThreads) {
        from_float32(to_float32(x[i]) + to_float32(residual[i]), sum + i);
      }
      x = sum;
    }
    float mean[1] = {0.0F};
    if (layout.centred) {
      for (int i = thread; i < layout.width; i += kThreads) {
        mean[0] += to_float32(x[i]);
      }
      row_sums(mean, group, meeting, side);
      mean[0] *= share;
    }
    float squares[1] = {0.0F};
    for (int i = thread; i < layout.width; i += kThreads) {
      const float difference = to_float32(x[i]) - mean[0];
      squares[0] += difference * difference;
    }
    row_sums(squares, group, meeting, side);
    const float rstd = rsqrtf(squares[0] * share + layout.epsilon);
    if (thread == 0) {
      a.rstd[row] = rstd;
      if (layout.centred) {
        a.mean[row] = mean[0];
      }
    }
    for (int i = thread; i < layout.width; i += kThreads) {
      const float normalised = (to_float32(x[i]) - mean[0]) * rstd;
      from_float32(normalised * weight_at<T>(a.weight, layout, i, 1.0F) +
                       weight_at<T>(a.bias, layout, i, 0.0F),
                   static_cast<T*>(a.output) + start + i);
    }
  }
}

// A thread has the same columns of every row, and adds them to its block's partials.
template <typename T>
__global__ __launch_bounds__(kThreads) void plain_backward_kernel(const Layout layout,
                                                                  const NormBackward a) {
  __shared__ Meeting<2> meeting;
  wait_for_kernel_before();
  int side = 0;
  const RowGroup group(kWarps);
  const int thread = static_cast<int>(threadIdx.x);
  const float share = 1.0F / static_cast<float>(layout.width);
  float* weight_sums = nullptr;
  float* bias_sums = nullptr;
  if (a.partials != nullptr) {
    weight_sums = a.partials + static_cast<std::int64_t>(blockIdx.x) * layout.width;
    bias_sums = weight_sums + static_cast<std::int64_t>(gridDim.x) * layout.width;
    for (int i = thread; i < layout.width; i += kThreads) {
      weight_sums[i] = 0.0F;
      if (layout.centred) {
        bias_sums[i] = 0.0F;
      }
    }
  }
  for (std::int64_t row = group.first_row(); row < layout.rows; row += group.row_step()) {
    const std::int64_t start = row * layout.width;
    const T* x = static_cast<const T*>(a.x) + start;
    const T* gradient = static_cast<const T*>(a.output_gradient) + start;
    Statistics s;
    s.load(a, layout.centred, row);
    float sums[2] = {0.0F, 0.0F};  // Σ g · x̂ and Σ g
    for (int i = thread; i < layout.width; i += kThreads) {
      const float given = to_float32(gradient[i]);
      const float g = given * weight_at<T>(a.weight, layout, i, 1.0F);
      const float normalised = (to_float32(x[i]) - s.mean) * s.rstd;
      sums[0] = fmaf(g, normalised, sums[0]);
      sums[1] += g;
      if (weight_sums != nullptr) {
        weight_sums[i] = fmaf(given, normalised, weight_sums[i]);
        if (layout.centred) {
          bias_sums[i] += given;
        }
      }
    }
    row_sums(sums, group, meeting, side);
    const float along = -s.rstd * (sums[0] * share);
    const float uniform = layout.centred ? -s.rstd * (sums[1] * share) : 0.0F;
    const T* other = static_cast<const T*>(a.sum_gradient);
    for (int i = thread; i < layout.width; i += kThreads) {
      const float g = to_float32(gradient[i]) * weight_at<T>(a.weight, layout, i, 1.0F);
      const float normalised = (to_float32(x[i]) - s.mean) * s.rstd;
      const float own = fmaf(g, s.rstd, fmaf(along, normalised, uniform));
      from_float32(own + (other == nullptr ? 0.0F : to_float32(other[start + i])),
                   static_cast<T*>(a.input_gradient) + start + i);
    }
  }
}

// Sums the blocks' partials; blockIdx.y 0: weight, 1: bias.
__global__ __launch_bounds__(kWarp* kSumRows) void sum_partials_kernel(const float* partials,
                                                                       int count, int width,
                                                                       DType dtype, void* weight,
                                                                       void* bias) {
  __shared__ float sums[kSumRows][kWarp];
  wait_for_kernel_before();
  let_kernel_behind_begin();
  const int column = static_cast<int>(blockIdx.x) * kWarp + static_cast<int>(threadIdx.x);
  const float* from = partials + static_cast<std::int64_t>(blockIdx.y) * count * width + column;
  float sum = 0.0F;
  for (int first = static_cast<int>(threadIdx.y); first < count; first += kSumRows * kSumsAhead) {
    float values[kSumsAhead];
#pragma unroll
    for (int i = 0; i < kSumsAhead; ++i) {
      const int row = first + i * kSumRows;
      values[i] = row < count && column < width ? from[static_cast<std::int64_t>(row) * width] : 0;
    }
#pragma unroll
    for (float value : values) {
      sum += value;
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  void* to = blockIdx.y == 0 ? weight : bias;
  if (threadIdx.y != 0 || column >= width || to == nullptr) {
    return;
  }
#pragma unroll
  for (int row = 1; row < kSumRows; ++row) {
    sum += sums[row][threadIdx.x];
  }
  switch (dtype) {
    case DType::kFloat16: return from_float32(sum, static_cast<Half*>(to) + column);
    case DType::kBFloat16: return from_float32(sum, static_cast<BFloat16*>(to) + column);
    default: return from_float32(sum, static_cast<float*>(to) + column);
  }
}

// How a launch goes about its rows.
struct Plan {
  Layout layout;
  bool wide;  // 16-byte accesses fit everywhere
  int threads = kThreads;
  int blocks;

  Plan(const NormShape& shape, bool forward, std::initializer_list<const void*> rows,
       std::initializer_list<const void*> weights)
      : layout{.rows = shape.rows,
               .width = static_cast<int>(shape.width),
               .warps = kWarps,
               .epsilon = static_cast<float>(shape.epsilon),
               .centred = shape.centred,
               .weight_is_float = shape.weight_dtype == DType::kFloat32},
        wide(shape.width % kWide == 0) {
    for (const void* array : rows) {
      wide = wide && is_aligned16(array, 0);
    }
    for (const void* array : weights) {
      wide = wide && is_aligned16(array, 0);
    }
    while (wide && layout.warps > 1 && layout.warps * (kNarrow / kWarps) >= 2 * shape.width) {
      layout.warps /= 2;
    }
    std::int64_t most = multiprocessors();  // all blocks stay
    if (forward && wide && layout.warps * kWarp <= kForwardThreads) {
      threads = kForwardThreads;
      most *= kForwardBlocks;
    }
    blocks = static_cast<int>(std::min(shape.rows, most));
  }
  bool is_narrow() const { return layout.width <= kNarrow; }
};

template <typename Arrays>
void launch(const Place& place, const Plan& plan, void (*kernel)(Layout, Arrays), int bytes,
            const Arrays& arrays) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "norm");
  launch_behind(kernel, grid_size(plan.blocks), plan.threads, bytes, place, plan.layout, arrays);
}

template <typename T, int kVectors>
void launch_forward(const Place& place, const Plan& plan, const NormForward& a) {
  const int bytes = weight_bytes<kVectors>(plan.layout.warps) * (a.bias == nullptr ? 1 : 2);
  launch(
      place, plan,
      plan.layout.centred ? forward_kernel<T, kVectors, true> : forward_kernel<T, kVectors, false>,
      bytes, a);
}

template <typename T, int kVectors>
void launch_backward(const Place& place, const Plan& plan, const NormBackward& a) {
  launch(place, plan,
         plan.layout.centred ? backward_kernel<T, kVectors, true>
                             : backward_kernel<T, kVectors, false>,
         weight_bytes<kVectors>(kWarps), a);
}

}  // namespace

void norm_forward(const Place& place, const NormShape& shape, const NormForward& a) {
  const Plan plan(shape, true, {a.input, a.residual, a.sum, a.output}, {a.weight, a.bias});
  with_type(shape.dtype, [&]<typename T>() {
    if (!plan.wide || (sizeof(T) > 2 && !plan.is_narrow())) {
      launch(place, plan, plain_forward_kernel<T>, 0, a);
    } else if (plan.is_narrow()) {
      launch_forward<T, 2>(place, plan, a);
    } else if constexpr (sizeof(T) == 2) {
      launch_forward<T, 4>(place, plan, a);
    }
  });
}

void norm_backward(const Place& place, const NormShape& shape, const NormBackward& a) {
  const bool sums = a.weight_gradient != nullptr || a.bias_gradient != nullptr;
  SW_CHECK(!sums || a.partials != nullptr, "gradients of the weight need partials");
  NormBackward arrays = a;
  arrays.partials = sums ? a.partials : nullptr;
  const Plan plan(shape, false, {a.output_gradient, a.sum_gradient, a.x, a.input_gradient},
                  {a.weight, arrays.partials});
  if (shape.rows > 0) {
    with_type(shape.dtype, [&]<typename T>() {
      if (!plan.wide || (sizeof(T) > 2 && !plan.is_narrow())) {
        launch(place, plan, plain_backward_kernel<T>, 0, arrays);
      } else if (plan.is_narrow()) {
        launch_backward<T, 2>(place, plan, arrays);
      } else if constexpr (sizeof(T) == 2) {
        launch_backward<T, 4>(place, plan, arrays);
      }
    });
  }
  if (sums) {
    const dim3 grid(grid_size((shape.width + kWarp - 1) / kWarp), shape.centred ? 2 : 1);
    launch_behind(sum_partials_kernel, grid, dim3(kWarp, kSumRows), 0, place, a.partials,
                  plan.blocks, plan.layout.width, shape.weight_dtype, a.weight_gradient,
                  a.bias_gradient);
  }
}

std::int64_t norm_partials(const NormShape& shape) {
  const std::int64_t blocks = Plan(shape, false, {}, {}).blocks;
  return std::max<std::int64_t>(blocks, 1) * shape.width * (shape.centred ? 2 : 1);
}

}  // namespace shardwise::kernels::cuda
