// A row belongs to 1 … 16 warps, which hold it in registers: it is read once and written once.
// - Forward: a group of warps takes one row. Blocks come and go, so that multiprocessors that are
//   ahead get more of them.
// - Backward: blocks stay and take row after row, since they sum the gradients of weight and bias
//   over their rows; a second kernel sums over blocks, so that sums have one order.
// Rows that 16-byte accesses do not fit are read and written element by element.
#include <algorithm>
#include <initializer_list>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"
#include "shardwise/kernels/norm.h"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
// Eights of a row that a thread holds, at least and at most.
constexpr int kFew = 2;
constexpr int kMany = 4;

// Forward. Of rows without a residual a thread holds 128 bytes, so that a warp has a row of 2048
// 16-bit elements to itself: no barriers. With a residual it holds eights of both, and fewer of
// them. Threads of a block and blocks on a multiprocessor are those that were fastest on an H200.
template <typename T>
constexpr int kManyForward = 16 / static_cast<int>(sizeof(T));
constexpr int kFewThreads = 256;
constexpr int kManyThreads = 128;  // more where a row has more
template <typename T, int kVectors>
constexpr int kMostThreads =
    kVectors == kFew ? kFewThreads : static_cast<int>(kMaxNormWidth) / (kVectors * kWide);
template <typename T, int kVectors>
constexpr int kBlocks =
    kVectors == kFew && sizeof(T) == 2 ? 5 : std::max(1, 768 / kMostThreads<T, kVectors>);

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

// A thread's columns. kAligned: rows are multiples of eight elements, at multiples of 16 bytes.
template <typename T, int kVectors, bool kAligned>
struct Columns {
  int first;
  int apart;           // from one vector to the next
  int left[kVectors];  // from a vector's first column to the row's end; may be negative

  __device__ __forceinline__ Columns(int first, int apart, int width) : first(first), apart(apart) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      left[v] = width - first - v * apart;
    }
  }
  // An eight; `from` is where the thread's first element of the row is.
  template <typename W>
  __device__ __forceinline__ Packed<W> at(const W* from, int v) const {
    if constexpr (kAligned) {
      return left[v] > 0 ? load8(from + v * apart) : Packed<W>{};
    } else {
      return load8(from + v * apart, left[v], false);
    }
  }
  // `place` is where the thread's first element of a row is in an array of rows.
  __device__ __forceinline__ void load(const void* rows, std::int64_t place,
                                       Part<T, kVectors>& to) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      to.at[v] = at(static_cast<const T*>(rows) + place, v);
    }
  }
  __device__ __forceinline__ void store(const Packed<T>& packed, void* rows, std::int64_t place,
                                        int v) const {
    T* to = static_cast<T*>(rows) + place + v * apart;
    if constexpr (kAligned) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
        store16_streaming(packed.part[i], reinterpret_cast<uint4*>(to) + i, left[v] > 0);
      }
    } else {
      store8(packed, to, left[v], false);
    }
  }
};

// The rows of a group in a backward pass, one after the other. take() gives a row's parts of x and
// of the gradient; its result is the row's place (see Columns). Where registers and shared memory
// are enough, the next kStages rows are on their way into shared memory meanwhile, where every
// thread has places of its own: none waits for another. More stages were slower on an H200: 4 by
// 2 %, 6 by 4 %.
template <typename T, int kVectors, bool kAligned>
class Rows {
 public:
  static constexpr int kStages = kAligned && kVectors * sizeof(T) <= 4 ? 2 : 0;
  static constexpr int kBytes = kStages * 2 * kVectors * kThreads * sizeof(Packed<T>);

  __device__ __forceinline__ Rows(void* shared, const Layout& layout, const RowGroup& group,
                                  const NormBackward& a)
      : columns(group.column(0), group.column(1) - group.column(0), layout.width),
        slots_(static_cast<Packed<T>*>(shared) + threadIdx.x),
        from_{static_cast<const T*>(a.x), static_cast<const T*>(a.output_gradient)},
        left_(layout.rows - group.first_row()),
        step_(group.row_step()),
        row_(group.first_row()),
        place_(row_ * layout.width + group.column(0)),
        place_step_(step_ * layout.width) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      request(stage, stage);
    }
  }
  __device__ __forceinline__ bool any() const { return left_ > 0; }
  // Of the row that is taken next.
  __device__ __forceinline__ std::int64_t row() const { return row_; }
  __device__ __forceinline__ std::int64_t take(Part<T, kVectors>& x, Part<T, kVectors>& gradient) {
    if constexpr (kStages == 0) {
      columns.load(from_[0], place_, x);
      columns.load(from_[1], place_, gradient);
    } else {
      wait_for_copies<kStages - 1>();
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        x.at[v] = *slot(stage_, 0, v);
        gradient.at[v] = *slot(stage_, 1, v);
      }
      request(stage_, kStages);
      stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    }
    const std::int64_t taken = place_;
    row_ += step_;
    left_ -= step_;
    place_ += place_step_;
    return taken;
  }

  const Columns<T, kVectors, kAligned> columns;

 private:
  __device__ __forceinline__ Packed<T>* slot(int stage, int array, int v) const {
    return slots_ + ((stage * 2 + array) * kVectors + v) * kThreads;
  }
  // The row `ahead` of the next one. Behind the last row nothing is copied, but counted.
  __device__ __forceinline__ void request(int stage, int ahead) {
    static_assert(sizeof(Packed<T>) == 16 || kStages == 0);
    if (left_ > ahead * step_) {
      const std::int64_t place = place_ + ahead * place_step_;
#pragma unroll
      for (int array = 0; array < 2; ++array) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          copy16_async(slot(stage, array, v), from_[array] + place + v * columns.apart,
                       columns.left[v] > 0 ? 16 : 0);
        }
      }
    }
    commit_copies();
  }

  Packed<T>* slots_;
  const T* from_[2];
  int stage_ = 0;
  std::int64_t left_;
  std::int64_t step_;
  std::int64_t row_;
  std::int64_t place_;
  std::int64_t place_step_;
};

__device__ __forceinline__ Floats8 from_slots(const float4& low, const float4& high) {
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

// The weight as floats in shared memory, where a warp reads whole lines. All groups of a block
// have the same columns.
class Weights {
 public:
  __device__ Weights(float4* slots, const RowGroup& group)
      : slots_(slots + group.warp * kWarp + group.lane), step_(group.warps * kWarp) {}

  // By the block's first group; __syncthreads() follows.
  template <typename T, int kVectors, bool kAligned>
  __device__ __forceinline__ void fill(const void* from, const Layout& layout,
                                       const RowGroup& group,
                                       const Columns<T, kVectors, kAligned>& columns) {
    for (int v = 0; v < kVectors && group.group == 0; ++v) {
      Floats8 values = {{1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F}};
      if (from != nullptr) {
        values = layout.weight_is_float
                     ? unpack(columns.at(static_cast<const float*>(from) + columns.first, v))
                     : unpack(columns.at(static_cast<const T*>(from) + columns.first, v));
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

// Mean and 1 / √(variance + epsilon) of a row. Eights have sums of their own, for few roundings.
template <bool kCentred, typename T, int kVectors, bool kAligned>
__device__ __forceinline__ float2 statistics(Part<T, kVectors>& x,
                                             const Columns<T, kVectors, kAligned>& columns,
                                             const Layout& layout, const RowGroup& group) {
  __shared__ Meeting<1> meeting;
  int side = 0;
  const float share = 1.0F / static_cast<float>(layout.width);
  float mean = 0.0F;
  if constexpr (kCentred) {
    float sum[1] = {0.0F};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Floats8 values = unpack(x.at[v]);
      float eight = 0.0F;
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        eight += values.at[i];
      }
      sum[0] += eight;
    }
    row_sums(sum, group, meeting, side);
    mean = sum[0] * share;
  }
  float squares[1] = {0.0F};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    forget(x.at[v]);
    const Floats8 values = unpack(x.at[v]);
    float eight = 0.0F;
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      if (!kCentred || kAligned || i < columns.left[v]) {
        const float difference = values.at[i] - mean;
        eight = fmaf(difference, difference, eight);
      }
    }
    squares[0] += !kCentred || columns.left[v] > 0 ? eight : 0.0F;
  }
  row_sums(squares, group, meeting, side);
  return {mean, rsqrtf(squares[0] * share + layout.epsilon)};
}

// Adds the residual to a thread's part of a row, and keeps the sum.
template <typename T, int kVectors, bool kAligned>
__device__ __forceinline__ void add_residual(const NormForward& a,
                                             const Columns<T, kVectors, kAligned>& columns,
                                             std::int64_t place, Part<T, kVectors>& x) {
  constexpr int kAtOnce = std::min(kVectors, kMany);  // more do not fit into registers
  const T* from = static_cast<const T*>(a.residual) + place;
#pragma unroll
  for (int first = 0; first < kVectors; first += kAtOnce) {
    Packed<T> residual[kAtOnce];
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      residual[v] = columns.at(from, first + v);
    }
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      Floats8 values = unpack(x.at[first + v]);
      const Floats8 more = unpack(residual[v]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        values.at[i] += more.at[i];
      }
      x.at[first + v] = pack<T>(values);
      columns.store(x.at[first + v], a.sum, place, first + v);
    }
  }
}

// An eight of weight or bias, which nothing writes meanwhile; `absent` where there is none.
template <typename W, typename T, int kVectors, bool kAligned>
__device__ __forceinline__ Floats8 constant(const void* from, int v, float absent,
                                            const Columns<T, kVectors, kAligned>& columns) {
  Packed<W> packed = pack<W>({{absent, absent, absent, absent, absent, absent, absent, absent}});
  const W* begin = static_cast<const W*>(from) + columns.first;
  if constexpr (kAligned) {
    const auto* parts = reinterpret_cast<const uint4*>(begin + v * columns.apart);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(W) / 2); ++i) {
      load16_constant(packed.part[i], parts + i, from != nullptr && columns.left[v] > 0);
    }
  } else if (from != nullptr) {
    packed = columns.at(begin, v);
  }
  return unpack(packed);
}

// Weights are loaded when the row's sums are there, so that they need no registers before.
template <typename W, bool kCentred, typename T, int kVectors, bool kAligned>
__device__ __forceinline__ void write_output(const NormForward& a, Part<T, kVectors>& x,
                                             const float2& mean_and_rstd,
                                             const Columns<T, kVectors, kAligned>& columns,
                                             std::int64_t place) {
  const float rstd = mean_and_rstd.y;
  const float shift = -mean_and_rstd.x * rstd;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    forget(x.at[v]);
    const Floats8 weight = constant<W>(a.weight, v, 1.0F, columns);
    Floats8 values = unpack(x.at[v]);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      values.at[i] =
          (kCentred ? fmaf(values.at[i], rstd, shift) : values.at[i] * rstd) * weight.at[i];
    }
    if constexpr (kCentred) {
      const Floats8 bias = constant<W>(a.bias, v, 0.0F, columns);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        values.at[i] += bias.at[i];
      }
    }
    columns.store(pack<T>(values), a.output, place, v);
  }
}

template <typename T, int kVectors, bool kCentred, bool kAligned>
__global__ __launch_bounds__(kMostThreads<T, kVectors>,
                             kBlocks<T, kVectors>) void forward_kernel(const Layout layout,
                                                                       const NormForward a) {
  const RowGroup group(layout.warps);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * group.groups() + group.group;
  wait_for_kernel_before();
  let_kernel_behind_begin();
  if (row >= layout.rows) {
    return;
  }
  // A warp has neighbouring eights, so that a thread's are at constant distances.
  const Columns<T, kVectors, kAligned> columns(kWide * (group.warp * kVectors * kWarp + group.lane),
                                               kWide * kWarp, layout.width);
  const std::int64_t place = row * layout.width + columns.first;
  Part<T, kVectors> x;
  columns.load(a.input, place, x);
  if (a.residual != nullptr) {
    add_residual(a, columns, place, x);
  }
  const float2 s = statistics<kCentred>(x, columns, layout, group);
  if (group.is_first()) {
    a.rstd[row] = s.y;
    if (kCentred) {
      a.mean[row] = s.x;
    }
  }
  if (layout.weight_is_float) {
    write_output<float, kCentred>(a, x, s, columns, place);
  } else {
    write_output<T, kCentred>(a, x, s, columns, place);
  }
}

// Adds the sums of a block's threads over its groups, in order, into a row of partials. All threads
// call it, and __syncthreads() comes before it.
template <bool kAligned, int kVectors>
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
    if (kAligned && column < width) {
      *reinterpret_cast<float4*>(partials + column) = sum;
    }
    for (int i = 0; !kAligned && i < std::min(4, width - column); ++i) {
      partials[column + i] = i < 2 ? (i == 0 ? sum.x : sum.y) : (i == 2 ? sum.z : sum.w);
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
template <typename T, int kVectors, bool kCentred, bool kAligned>
__global__ __launch_bounds__(kThreads, 1) void backward_kernel(const Layout layout,
                                                               const NormBackward a) {
  extern __shared__ float4 shared[];  // weights and rows, then sums
  __shared__ Meeting<kCentred ? 2 : 1> meeting;
  int side = 0;
  const RowGroup group(layout.warps);
  wait_for_kernel_before();
  let_kernel_behind_begin();
  Rows<T, kVectors, kAligned> rows(shared + 2 * kVectors * layout.warps * kWarp, layout, group, a);
  Weights weights(shared, group);
  weights.fill(a.weight, layout, group, rows.columns);
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
    write_column_sums<kAligned>(weight_sums, shared, group, layout.width, partials);
    if constexpr (kCentred) {
      partials += static_cast<std::int64_t>(gridDim.x) * layout.width;
      __syncthreads();
      write_column_sums<kAligned>(bias_sums, shared, group, layout.width, partials);
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

// For rows of which a thread holds `vectors` eights.
Layout layout_of(const NormShape& shape, int vectors) {
  int warps = 1;
  while (warps * kWarp * kWide * vectors < shape.width) {
    warps *= 2;
  }
  return {.rows = shape.rows,
          .width = static_cast<int>(shape.width),
          .warps = warps,
          .epsilon = static_cast<float>(shape.epsilon),
          .centred = shape.centred,
          .weight_is_float = shape.weight_dtype == DType::kFloat32};
}

bool fits16(const NormShape& shape, std::initializer_list<const void*> arrays) {
  return shape.width % kWide == 0 && std::all_of(arrays.begin(), arrays.end(),
                                                 [](const void* a) { return is_aligned16(a, 0); });
}

template <typename T, int kVectors, bool kAligned>
void launch_forward(const Place& place, const NormShape& shape, const NormForward& a) {
  const Layout layout = layout_of(shape, kVectors);
  const int threads = std::max(kVectors == kFew ? kFewThreads : kManyThreads, layout.warps * kWarp);
  const int rows = threads / kWarp / layout.warps;  // of a block
  launch_behind(shape.centred ? forward_kernel<T, kVectors, true, kAligned>
                              : forward_kernel<T, kVectors, false, kAligned>,
                grid_size((shape.rows + rows - 1) / rows), threads, 0, place, layout, a);
}

// All blocks stay.
int backward_blocks(const NormShape& shape) {
  return static_cast<int>(std::min<std::int64_t>(shape.rows, multiprocessors()));
}

template <typename T, int kVectors, bool kAligned>
void launch_backward(const Place& place, const NormShape& shape, const NormBackward& a) {
  const Layout layout = layout_of(shape, kVectors);
  const auto kernel = shape.centred ? backward_kernel<T, kVectors, true, kAligned>
                                    : backward_kernel<T, kVectors, false, kAligned>;
  const int rows = weight_bytes<kVectors>(layout.warps) + Rows<T, kVectors, kAligned>::kBytes;
  const int bytes = std::max(rows, weight_bytes<kVectors>(kWarps));  // or sums
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "norm");
  launch_behind(kernel, grid_size(backward_blocks(shape)), kThreads, bytes, place, layout, a);
}

}  // namespace

void norm_forward(const Place& place, const NormShape& shape, const NormForward& a) {
  const bool aligned = fits16(shape, {a.input, a.residual, a.sum, a.output, a.weight, a.bias});
  with_type(shape.dtype, [&]<typename T>() {
    constexpr int kVectors = kManyForward<T>;
    // Where many would leave half of a warp without work, and where there is a residual.
    const std::int64_t few =
        kWide * (a.residual == nullptr ? kVectors * kWarp / 2 : kFew * kFewThreads);
    if (!aligned) {
      launch_forward<T, kVectors, false>(place, shape, a);
    } else if (shape.width <= few) {
      launch_forward<T, kFew, true>(place, shape, a);
    } else {
      launch_forward<T, kVectors, true>(place, shape, a);
    }
  });
}

void norm_backward(const Place& place, const NormShape& shape, const NormBackward& a) {
  const bool sums = a.weight_gradient != nullptr || a.bias_gradient != nullptr;
  SW_CHECK(!sums || a.partials != nullptr, "gradients of the weight need partials");
  NormBackward arrays = a;
  arrays.partials = sums ? a.partials : nullptr;
  const bool aligned = fits16(
      shape, {a.output_gradient, a.sum_gradient, a.x, a.input_gradient, a.weight, arrays.partials});
  if (shape.rows > 0) {
    with_type(shape.dtype, [&]<typename T>() {
      if (!aligned) {
        launch_backward<T, kMany, false>(place, shape, arrays);
      } else if (shape.width <= kThreads * kFew * kWide) {
        launch_backward<T, kFew, true>(place, shape, arrays);
      } else {
        launch_backward<T, kMany, true>(place, shape, arrays);
      }
    });
  }
  if (sums) {
    const dim3 grid(grid_size((shape.width + kWarp - 1) / kWarp), shape.centred ? 2 : 1);
    launch_behind(sum_partials_kernel, grid, dim3(kWarp, kSumRows), 0, place, a.partials,
                  backward_blocks(shape), static_cast<int>(shape.width), shape.weight_dtype,
                  a.weight_gradient, a.bias_gradient);
  }
}

std::int64_t norm_partials(const NormShape& shape) {
  const std::int64_t blocks = backward_blocks(shape);
  return std::max<std::int64_t>(blocks, 1) * shape.width * (shape.centred ? 2 : 1);
}

}  // namespace shardwise::kernels::cuda
