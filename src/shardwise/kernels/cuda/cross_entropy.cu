// Two forms of the same row:
// - Hopper, where the gradient is written: a cluster of 1 … 8 blocks holds rows in its shared
//   memory, so the logits are read once and their gradient is written once. Clusters stay and take
//   row after row, see Note [Rows in a pipeline].
// - The loss alone, other devices, rows that do not fit: a block walks over the row once, and once
//   more for the gradient.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kStep = kWide * kThreads;  // from one of a thread's eights of logits to its next
constexpr int kAhead = 4;                // eights on their way in each thread that walks
constexpr int kMaxCluster = 8;           // what every device with clusters can do
constexpr int kBuffers = 3;              // rows in the shared memory of a cluster
constexpr int kSides = 4;                // mailboxes of a block, each for parts of all warps
constexpr int kSidesBytes = kSides * (kMaxCluster * kWarps * 16 + 8);

// The larger of each pair. NaNs are passed over: they come out in the sum of exponentials.
__device__ __forceinline__ float larger(float a, float b, float) { return fmaxf(a, b); }
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b, Half) {
  const __half2 both =
      __hmax2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
  return reinterpret_cast<const unsigned&>(both);
}
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b, BFloat16) {
  const __nv_bfloat162 both = __hmax2(reinterpret_cast<const __nv_bfloat162&>(a),
                                      reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const unsigned&>(both);
}

// Pairs of 16-bit logits are compared as they lie in memory.
template <typename T, int kCount>
__device__ __forceinline__ float largest_of(const Packed<T> (&x)[kCount]) {
  using Word = std::conditional_t<sizeof(T) == 4, float, unsigned>;
  constexpr int kWords = static_cast<int>(sizeof(Packed<T>) / 4);
  Word largest = reinterpret_cast<const Word*>(x[0].part)[0];
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      largest = larger(largest, reinterpret_cast<const Word*>(x[v].part)[i], T{});
    }
  }
  if constexpr (sizeof(T) == 4) {
    return largest;
  } else {
    const T* pair = reinterpret_cast<const T*>(&largest);
    return fmaxf(to_float32(pair[0]), to_float32(pair[1]));
  }
}

// What exponents of two are relative to; −∞ would give NaN. Rounded, so that equal ones cancel.
__device__ __forceinline__ float shift_of(float largest) {
  return largest == -INFINITY ? 0.0F : __fmul_rn(largest, kLog2E);
}

// Σ exp(x) · 2^−shift.
template <typename T, int kCount>
__device__ __forceinline__ float exponentials_of(const Packed<T> (&x)[kCount], float shift) {
  float sums[4] = {};
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
    const Floats8 values = unpack(x[v]);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      sums[i % 4] += exp2_of(fmaf(values.at[i], kLog2E, -shift));
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, offset);
  }
  return value;
}
__device__ __forceinline__ float warp_largest(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  }
  return value;
}

// The sums that a loss is made of: of a thread, a warp or the row.
struct Partial {
  float largest = -INFINITY;
  float exponentials = 0.0F;  // Σ exp(x) · 2^−shift_of(largest)
  float sum = 0.0F;           // Σ x, where labels are smoothed

  // Exponentials in terms of a larger one. None stays none, whatever was the largest; NaN stays.
  __device__ __forceinline__ float exponentials_for(float shift) const {
    return exponentials == 0.0F ? 0.0F : exponentials * exp2_of(shift_of(largest) - shift);
  }
};

__device__ __forceinline__ float4 pack_partial(const Partial& p) {
  return make_float4(p.largest, p.exponentials, p.sum, 0.0F);
}

// Of `count` ≤ kMost warps; the same in every thread.
template <int kMost>
__device__ __forceinline__ Partial put_together(const float4* parts, int count, bool needs_sum) {
  constexpr int kEach = (kMost + kWarp - 1) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Partial some[kEach];
  Partial all;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int at = lane + k * kWarp;
    if (at < count) {
      some[k].largest = parts[at].x;
      some[k].exponentials = parts[at].y;
    }
    all.largest = fmaxf(all.largest, some[k].largest);
  }
  all.largest = warp_largest(all.largest);
  const float shift = shift_of(all.largest);
#pragma unroll
  for (const Partial& one : some) {
    all.exponentials += one.exponentials_for(shift);
  }
  all.exponentials = warp_sum(all.exponentials);
  if (needs_sum) {
    for (int at = lane; at < count; at += kWarp) {
      all.sum += parts[at].z;
    }
    all.sum = warp_sum(all.sum);
  }
  return all;
}

// Elements from `valid` on become −∞: they have no share.
template <typename T>
__device__ __forceinline__ void cut(Packed<T>& x, int valid) {
  T* elements = reinterpret_cast<T*>(&x);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if (i >= valid) {
      from_float32(-INFINITY, elements + i);
    }
  }
}

template <typename T>
__device__ __forceinline__ float sum_of(const Packed<T>& x, int valid) {
  const Floats8 values = unpack(x);
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    sum += i < valid ? values.at[i] : 0.0F;
  }
  return sum;
}

struct Arguments {
  CrossEntropyShape shape;
  std::int64_t ignored;
  float smoothing;
  float everywhere;  // smoothing / vocabulary
  float z_loss;
  bool write_gradient;
  bool aligned;
  CrossEntropyArrays arrays;
};

// What turns a row's logits into their gradient.
struct Row {
  int target;
  float weight;
  float constant;  // of rows without a softmax: 0 if ignored, NaN if the target is outside
  bool has_softmax;
  float log_sum;
  float of_softmax;
  float everywhere;
  float here;
};

__device__ __forceinline__ Row begin_row(const Arguments& a, std::int64_t row,
                                         std::int64_t target) {
  Row r;
  const bool ignored = target == a.ignored;
  r.target = static_cast<int>(target);
  r.weight = a.arrays.weights == nullptr ? 1.0F : a.arrays.weights[row];
  r.has_softmax = !ignored && target >= 0 && target < a.shape.vocabulary;
  r.constant = ignored ? 0.0F : NAN;
  return r;
}

__device__ __forceinline__ void finish_row(const Arguments& a, Row& r, const Partial& all,
                                           float factor) {
  r.log_sum = (all.largest == -INFINITY ? 0.0F : all.largest) + logf(all.exponentials);
  const float scale = r.weight * factor;
  r.of_softmax = scale * (1.0F + 2.0F * a.z_loss * r.log_sum);
  r.everywhere = scale * a.everywhere;
  r.here = scale * (1.0F - a.smoothing);
}

// By one thread.
__device__ __forceinline__ void write_loss(const Arguments& a, std::int64_t row, const Row& r,
                                           const Partial& all, float at_target) {
  const float smooth = a.smoothing == 0.0F ? 0.0F : a.everywhere * all.sum;
  static_cast<float*>(a.arrays.losses)[row] =
      r.weight *
      (r.log_sum - (1.0F - a.smoothing) * at_target - smooth + a.z_loss * r.log_sum * r.log_sum);
}

__device__ __forceinline__ float factor_of(const Arguments& a) {
  return a.arrays.factor == nullptr ? 1.0F : *a.arrays.factor;
}

// Writes the gradient of eight logits in place of them.
template <typename T>
__device__ __forceinline__ void write_gradient(const Row& r, const Packed<T>& logits, T* x,
                                               int column, int n, bool aligned) {
  const float shift = r.log_sum * kLog2E;
  Floats8 values = unpack(logits);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    const float share = exp2_of(fmaf(values.at[i], kLog2E, -shift));
    values.at[i] = fmaf(r.of_softmax, share, -r.everywhere);
  }
  const unsigned offset = static_cast<unsigned>(r.target - column);
  if (offset < kWide) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      values.at[i] -= i == static_cast<int>(offset) ? r.here : 0.0F;
    }
  }
  store8(pack<T>(values), x + column, n - column, aligned);
}

// The loss and gradient of a row without a softmax, by all threads that share the row: each its
// eights from `first` on.
template <typename T>
__device__ __forceinline__ void write_constant(const Arguments& a, std::int64_t row, const Row& r,
                                               T* x, int first, int end) {
  if (first == 0) {
    static_cast<float*>(a.arrays.losses)[row] = r.constant;
  }
  const Floats8 values = {{r.constant, r.constant, r.constant, r.constant, r.constant, r.constant,
                           r.constant, r.constant}};
  const Packed<T> packed = pack<T>(values);
  for (int i = first; a.write_gradient && i < end; i += kStep) {
    store8(packed, x + i, end - i, a.aligned);
  }
}

// The next kAhead eights; −∞ beyond the row's end.
template <typename T>
__device__ __forceinline__ void load_ahead(Packed<T> (&to)[kAhead], const T* x, int first, int n,
                                           bool aligned) {
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    const int column = first + k * kStep;
    to[k] = load8(x + (column < n ? column : 0), n - column, aligned);
  }
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    const int valid = n - (first + k * kStep);
    if (valid < kWide) {
      cut(to[k], valid);
    }
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads, 2) void walking_kernel(const Arguments a) {
  __shared__ float4 parts[kWarps];
  const std::int64_t row = blockIdx.x;
  T* const x = static_cast<T*>(a.arrays.logits) + row * a.shape.row_stride;
  const int n = static_cast<int>(a.shape.vocabulary);
  const int first = kWide * static_cast<int>(threadIdx.x);
  Row r = begin_row(a, row, a.arrays.targets[row]);
  if (!r.has_softmax) {
    write_constant(a, row, r, x, first, n);
    return;
  }
  const float at_target = threadIdx.x == 0 ? to_float32(x[r.target]) : 0.0F;
  Partial mine;
  for (int i = first; i < n; i += kAhead * kStep) {
    Packed<T> logits[kAhead];
    load_ahead(logits, x, i, n, a.aligned);
    const float largest = fmaxf(mine.largest, largest_of(logits));
    const float shift = shift_of(largest);
    mine.exponentials = mine.exponentials_for(shift) + exponentials_of(logits, shift);
    mine.largest = largest;
    if (a.smoothing != 0.0F) {
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        mine.sum += sum_of(logits[k], n - (i + k * kStep));
      }
    }
  }
  const float largest = warp_largest(mine.largest);
  mine.exponentials = warp_sum(mine.exponentials_for(shift_of(largest)));
  mine.largest = largest;
  mine.sum = warp_sum(mine.sum);
  if (threadIdx.x % kWarp == 0) {
    parts[threadIdx.x / kWarp] = pack_partial(mine);
  }
  __syncthreads();  // the target's logit is read, too
  const Partial all = put_together<kWarps>(parts, kWarps, a.smoothing != 0.0F);
  finish_row(a, r, all, factor_of(a));
  if (threadIdx.x == 0) {
    write_loss(a, row, r, all, at_target);
  }
  for (int i = first; a.write_gradient && i < n; i += kAhead * kStep) {
    Packed<T> logits[kAhead];
    load_ahead(logits, x, i, n, a.aligned);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k * kStep < n) {
        write_gradient(r, logits[k], x, i + k * kStep, n, a.aligned);
      }
    }
  }
}

// Note [Rows in a pipeline]
// Round j of a cluster: every warp sends its part of the sums of row j to all blocks. Then the row
// before, whose sums were sent a round ago, becomes its gradient, and each of its places is asked
// to take row j + 2. Row j + 1 comes meanwhile: what a round waits for was begun a round before.
//
// Rows without a softmax are not exchanged, so exchanges have numbers of their own. A warp that
// sends for exchange n has read all up to n − 2; so all warps had sent for n − 2, and read n − 4
// before. Hence four mailboxes by turns suffice: that of n − 4 has ended its phase and been read in
// all blocks. Blocks leave when the last exchange has come: nothing is sent to them any more.

// A thread's part of the rows of its cluster: eights of logits, kStep apart, and their places in
// shared memory, which no other thread touches. A block's part is of neighbours; all have as much.
template <typename T>
struct Slice {
  static constexpr int kParts = static_cast<int>(sizeof(T) / 2);  // of 16 bytes in eight logits
  static constexpr int kVectors = 8 / kParts;                     // eights of logits
  static constexpr int kColumns = kVectors * kStep;               // of a block
  static constexpr int kBytes = kBuffers * kColumns * static_cast<int>(sizeof(T));

  uint4* staged;
  int first;
  int end;  // of the block

  __device__ __forceinline__ Slice(uint4* staged, int n, int rank, int blocks) : staged(staged) {
    const int step = blocks * kWarp * kWide;  // in whole warps
    const int columns = (n + step - 1) / step * (kWarp * kWide);
    first = rank * columns + kWide * static_cast<int>(threadIdx.x);
    end = min(n, (rank + 1) * columns);
  }
  __device__ __forceinline__ int column(int v) const { return first + v * kStep; }
  __device__ __forceinline__ uint4* slot(int buffer, int v, int part) const {
    return staged + ((buffer * kVectors + v) * kParts + part) * kThreads + threadIdx.x;
  }
  __device__ __forceinline__ T* element(int buffer, int v, int i) const {
    constexpr int kOfPart = kWide / kParts;
    return reinterpret_cast<T*>(slot(buffer, v, i / kOfPart)) + i % kOfPart;
  }
  // Elements from `valid` on become −∞: they have no share.
  __device__ __forceinline__ void cut(int buffer, int v, int valid) const {
    for (int i = valid; i < kWide; ++i) {
      from_float32(-INFINITY, element(buffer, v, i));
    }
  }
  // What is never copied.
  __device__ __forceinline__ void initialize() const {
    for (int buffer = 0; buffer < kBuffers; ++buffer) {
      for (int v = 0; v < kVectors; ++v) {
        if (column(v) >= end) {
          cut(buffer, v, 0);
        }
      }
    }
  }
  // Begins to copy an eight of row x into shared memory. Null: there is no such row.
  __device__ __forceinline__ void request(const T* x, int buffer, int v) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = column(v) + part * (kWide / kParts);
      if (x != nullptr && at < end) {
        copy16_async(slot(buffer, v, part), x + at,
                     min((end - at) * static_cast<int>(sizeof(T)), 16));
      }
    }
  }
  __device__ __forceinline__ void request(const T* x, int buffer) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      request(x, buffer, v);
    }
  }
  // What has come, −∞ beyond the row's end.
  __device__ __forceinline__ Packed<T> read(int buffer, int v) const {
    Packed<T> logits;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      logits.part[part] = *slot(buffer, v, part);
    }
    return logits;
  }
  __device__ __forceinline__ void read(Packed<T> (&held)[kVectors], int buffer) const {
    const int valid = (end - first) % kStep;
    if (valid > 0 && valid < kWide) {
      cut(buffer, (end - first) / kStep, valid);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      held[v] = read(buffer, v);
    }
  }
  __device__ __forceinline__ bool has(int target) const {
    return target >= first && target < end && (target - first) % kStep < kWide;
  }
  __device__ __forceinline__ float logit(int buffer, int target) const {
    const int offset = target - first;
    return to_float32(*element(buffer, offset / kStep, offset % kStep));
  }
};

// See Note [Rows in a pipeline].
template <typename T>
__global__ __launch_bounds__(kThreads, 1) void cluster_kernel(const Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ uint4 staged[];
  __shared__ float4 parts[kSides][kMaxCluster * kWarps];
  __shared__ Mailbox mailboxes[kSides];
  const int blocks = blocks_of_cluster();
  const int rank = rank_in_cluster();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t clusters = gridDim.x / blocks;
  const bool smooth = a.smoothing != 0.0F;
  const Slice<T> slice(staged, static_cast<int>(a.shape.vocabulary), rank, blocks);
  if (threadIdx.x == 0) {
    for (Mailbox& mailbox : mailboxes) {
      mailbox.initialize();
    }
  }
  slice.initialize();
  const float factor = factor_of(a);
  std::int64_t row = blockIdx.x / blocks;
  T* x = static_cast<T*>(a.arrays.logits) + row * a.shape.row_stride;
  const std::int64_t step = clusters * a.shape.row_stride;
  slice.request(x, 0);
  commit_copies();
  slice.request(row + clusters < a.shape.rows ? x + step : nullptr, 1);
  commit_copies();
  std::int64_t next_target = a.arrays.targets[row];
  cluster_barrier();
  Row former = {};
  unsigned sent = 0;
  unsigned received = 0;
  for (unsigned round = 0; row < a.shape.rows + clusters; ++round, row += clusters, x += step) {
    Row r = {};
    if (row < a.shape.rows) {
      r = begin_row(a, row, next_target);
    }
    if (row + clusters < a.shape.rows) {
      next_target = a.arrays.targets[row + clusters];
    }
    wait_for_copies<1>();
    if (r.has_softmax) {  // the same for the whole cluster
      Packed<T> held[Slice<T>::kVectors];
      slice.read(held, round % kBuffers);
      const unsigned side = sent++ % kSides;
      if (threadIdx.x == 0) {
        mailboxes[side].expect(blocks * kWarps * static_cast<int>(sizeof(float4)));
      }
      Partial mine;
      if (smooth) {
#pragma unroll
        for (int v = 0; v < Slice<T>::kVectors; ++v) {
          mine.sum += sum_of(held[v], slice.end - slice.column(v));
        }
        mine.sum = warp_sum(mine.sum);
      }
      mine.largest = warp_largest(largest_of(held));
      mine.exponentials = warp_sum(exponentials_of(held, shift_of(mine.largest)));
      if (lane < blocks) {
        mailboxes[side].send(pack_partial(mine), &parts[side][rank * kWarps + warp], lane);
      }
    }
    const std::int64_t former_row = row - clusters;
    const int buffer = static_cast<int>((round + kBuffers - 1) % kBuffers);
    T* const former_x = x - step;
    const T* const coming = row + 2 * clusters < a.shape.rows ? x + 2 * step : nullptr;
    if (former.has_softmax) {
      const bool has_target = slice.has(former.target);
      const float at_target = has_target ? slice.logit(buffer, former.target) : 0.0F;
      const unsigned side = received % kSides;
      mailboxes[side].wait(received++ / kSides % 2);
      constexpr int kMost = kMaxCluster * kWarps;
      const Partial all = blocks <= kMaxCluster / 2  // mostly: half the instructions
                              ? put_together<kMost / 2>(parts[side], blocks * kWarps, smooth)
                              : put_together<kMost>(parts[side], blocks * kWarps, smooth);
      finish_row(a, former, all, factor);
      if (has_target) {
        write_loss(a, former_row, former, all, at_target);
      }
#pragma unroll
      for (int v = 0; v < Slice<T>::kVectors; ++v) {
        if (slice.column(v) < slice.end) {
          write_gradient(former, slice.read(buffer, v), former_x, slice.column(v), slice.end, true);
          slice.request(coming, buffer, v);
        }
      }
    } else {
      if (round > 0) {
        write_constant(a, former_row, former, former_x, slice.first, slice.end);
      }
      slice.request(coming, buffer);
    }
    commit_copies();
    former = r;
  }
#endif
}

// Launches as many clusters as stay on the device at a time. False where none does, or a row does
// not fit.
template <typename T>
bool launch_clusters(const Place& place, const Arguments& arguments) {
  int blocks = 1;
  while (blocks * std::int64_t{Slice<T>::kColumns} < arguments.shape.vocabulary) {
    blocks *= 2;
  }
  // Devices with so much shared memory have clusters, too.
  if (blocks > kMaxCluster ||
      device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) < Slice<T>::kBytes + kSidesBytes) {
    return false;
  }
  cudaLaunchAttribute size = {};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim.x = static_cast<unsigned>(blocks);
  size.val.clusterDim.y = 1;
  size.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = Slice<T>::kBytes;
  config.stream = stream_of(place);
  config.attrs = &size;
  config.numAttrs = 1;
  check(cudaFuncSetAttribute(cluster_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             Slice<T>::kBytes),
        "cross_entropy");
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, cluster_kernel<T>, &config), "cross_entropy");
  if (clusters == 0) {
    return false;
  }
  config.gridDim =
      grid_size(std::min<std::int64_t>(arguments.shape.rows, clusters) * std::int64_t{blocks});
  check(cudaLaunchKernelEx(&config, cluster_kernel<T>, arguments), "cross_entropy");
  return true;
}

template <typename T>
__global__ __launch_bounds__(kThreads) void rescale_kernel(T* array, std::int64_t n,
                                                           const float* factor, bool aligned) {
  const float multiplier = *factor;
  if (multiplier == 1.0F) {
    return;
  }
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads * kWide;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWide;
       i < n; i += step) {
    Floats8 values = unpack(load8(array + i, n - i, aligned));
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      values.at[k] *= multiplier;
    }
    store8(pack<T>(values), array + i, n - i, aligned);
  }
}

}  // namespace

void cross_entropy(const Place& place, const CrossEntropyShape& shape, const CrossEntropyRule& rule,
                   const CrossEntropyArrays& arrays) {
  Arguments arguments{
      .shape = shape,
      .ignored = rule.ignored,
      .smoothing = static_cast<float>(rule.label_smoothing),
      .everywhere =
          static_cast<float>(rule.label_smoothing / static_cast<double>(shape.vocabulary)),
      .z_loss = static_cast<float>(rule.z_loss),
      .write_gradient = rule.write_gradient,
      .aligned = is_aligned16(arrays.logits, shape.row_stride * element_size(shape.dtype)),
      .arrays = arrays};
  with_type(shape.dtype, [&]<typename T>() {
    if (!rule.write_gradient || !arguments.aligned || !launch_clusters<T>(place, arguments)) {
      walking_kernel<T><<<grid_size(shape.rows), kThreads, 0, stream_of(place)>>>(arguments);
    }
  });
  check_launch("cross_entropy");
}

void rescale(const Place& place, void* array, DType dtype, std::int64_t n, const float* factor) {
  // Two blocks a multiprocessor of an H100: they leave soon where nothing is to do.
  constexpr std::int64_t kBlocks = 264;
  const std::int64_t blocks = (n + kThreads * kWide - 1) / (kThreads * kWide);
  with_type(dtype, [&]<typename T>() {
    rescale_kernel<T><<<grid_size(std::min(blocks, kBlocks)), kThreads, 0, stream_of(place)>>>(
        static_cast<T*>(array), n, factor, is_aligned16(array, 0));
  });
  check_launch("rescale");
}

}  // namespace shardwise::kernels::cuda
