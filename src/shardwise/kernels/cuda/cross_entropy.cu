// Two forms of the same row:
// - Hopper, where the gradient is written: a cluster of 1 … 8 blocks holds a row in its registers,
//   so the logits are read once and their gradient is written once. Clusters stay and take row
//   after row; the next one comes into shared memory meanwhile. Every warp sends its part of the
//   sums to all blocks, and no block waits for anything else.
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
constexpr int kAhead = 4;    // eights of logits on their way in each thread that walks
constexpr int kVectors = 8;  // eights of logits in each thread of a cluster
constexpr std::int64_t kHeldByBlock = kThreads * kVectors * kWide;
constexpr int kMaxCluster = 8;  // what every device with clusters can do

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

  // Exponentials in terms of a larger one.
  __device__ __forceinline__ float exponentials_for(float shift) const {
    return largest == -INFINITY ? 0.0F : exponentials * exp2_of(shift_of(largest) - shift);
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
  unsigned zero;  // see again()
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

// The loss and gradient of a row without a softmax, by all threads that share the row.
template <typename T>
__device__ __forceinline__ void write_constant(const Arguments& a, std::int64_t row, const Row& r,
                                               T* x, int first, int step) {
  if (first == 0) {
    static_cast<float*>(a.arrays.losses)[row] = r.constant;
  }
  const Floats8 values = {{r.constant, r.constant, r.constant, r.constant, r.constant, r.constant,
                           r.constant, r.constant}};
  const Packed<T> packed = pack<T>(values);
  const int n = static_cast<int>(a.shape.vocabulary);
  for (int i = first; a.write_gradient && i < n; i += step) {
    store8(packed, x + i, n - i, a.aligned);
  }
}

constexpr int kStep = kWide * kThreads;  // from one of a walking thread's eights to its next

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
    write_constant(a, row, r, x, first, kStep);
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

// A thread's part of the rows of its cluster: eights of logits, kStep apart, and their places in
// shared memory, which no other thread touches. A block's part is of neighbours.
template <typename T>
struct Slice {
  static constexpr int kParts = static_cast<int>(sizeof(T) / 2);  // of 16 bytes in eight logits
  static constexpr int kBytes = kThreads * kVectors * kParts * 16;

  uint4* staged;
  int n;
  int first;

  __device__ __forceinline__ int column(int v) const { return first + v * kStep; }
  __device__ __forceinline__ uint4* slot(int v, int part) const {
    return staged + (v * kParts + part) * kThreads + threadIdx.x;
  }
  __device__ __forceinline__ T* element(int v, int i) const {
    constexpr int kOfPart = kWide / kParts;
    return reinterpret_cast<T*>(slot(v, i / kOfPart)) + i % kOfPart;
  }
  // Elements from `valid` on become −∞: they have no share.
  __device__ __forceinline__ void cut(int v, int valid) const {
    for (int i = valid; i < kWide; ++i) {
      from_float32(-INFINITY, element(v, i));
    }
  }
  // What is never copied.
  __device__ __forceinline__ void initialize() const {
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= n) {
        cut(v, 0);
      }
    }
  }
  // Begins to copy the part of row x into shared memory.
  __device__ __forceinline__ void request(const T* x) const {
    const T* from = x + first;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int at = v * kStep + part * (kWide / kParts);
        const int left = n - first - at;
        if (left > 0) {
          copy16_async(slot(v, part), from + at, min(left * static_cast<int>(sizeof(T)), 16));
        }
      }
    }
  }
  // What was requested, −∞ beyond the row's end.
  __device__ __forceinline__ void read(Packed<T> (&held)[kVectors]) const {
    wait_for_copies();
    const int left = n - first;
    if (left > 0 && left < kVectors * kStep && left % kStep > 0 && left % kStep < kWide) {
      cut(left / kStep, left % kStep);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        held[v].part[part] = *slot(v, part);
      }
    }
  }
  __device__ __forceinline__ bool has(int target) const {
    const int offset = target - first;
    return offset >= 0 && offset < kVectors * kStep && offset % kStep < kWide;
  }
  __device__ __forceinline__ float logit(int target) const {
    const int offset = target - first;
    return to_float32(*element(offset / kStep, offset % kStep));
  }
  // Of all that was read. Once more from memory, since the registers are full.
  __device__ __forceinline__ float sum() const {
    float sum = 0.0F;
#pragma unroll 1
    for (int v = 0; v < kVectors; ++v) {
      Packed<T> logits;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        logits.part[part] = *slot(v, part);
      }
      sum += sum_of(logits, n - column(v));
    }
    return sum;
  }
};

// The same logits, which the compiler takes for others: else it would keep them as floats from one
// use to the next, in twice the registers, which there are not.
template <typename T>
__device__ __forceinline__ Packed<T> again(Packed<T> x, unsigned zero) {
  unsigned* words = reinterpret_cast<unsigned*>(&x);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(x) / sizeof(unsigned)); ++i) {
    words[i] ^= zero;
  }
  return x;
}

// Two blocks on a multiprocessor where the logits take half of their registers: while one computes,
// the other writes.
template <typename T>
__global__ __launch_bounds__(kThreads,
                             sizeof(T) == 2 ? 2 : 1) void cluster_kernel(const Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ uint4 staged[];
  // Two sides by turns: who sends to a side again has all warps' parts of the other, which they
  // send after they read this one.
  __shared__ float4 parts[2][kMaxCluster * kWarps];
  __shared__ Mailbox mailboxes[2];
  const int blocks = blocks_of_cluster();
  const int rank = rank_in_cluster();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t clusters = gridDim.x / blocks;
  T* const logits = static_cast<T*>(a.arrays.logits);
  const Slice<T> slice{
      .staged = staged,
      .n = static_cast<int>(a.shape.vocabulary),
      .first = rank * static_cast<int>(kHeldByBlock) + kWide * static_cast<int>(threadIdx.x)};
  if (threadIdx.x == 0) {
    mailboxes[0].initialize();
    mailboxes[1].initialize();
  }
  slice.initialize();
  const float factor = factor_of(a);
  std::int64_t row = blockIdx.x / blocks;
  slice.request(logits + row * a.shape.row_stride);
  std::int64_t next_target = a.arrays.targets[row];
  cluster_barrier();
  unsigned round = 0;
  for (; row < a.shape.rows; row += clusters) {
    T* const x = logits + row * a.shape.row_stride;
    Row r = begin_row(a, row, next_target);
    Packed<T> held[kVectors];
    slice.read(held);
    const bool has_target = slice.has(r.target);
    const float at_target = has_target ? slice.logit(r.target) : 0.0F;
    Partial mine;
    if (a.smoothing != 0.0F) {
      mine.sum = warp_sum(slice.sum());
    }
    if (row + clusters < a.shape.rows) {
      slice.request(x + clusters * a.shape.row_stride);
      next_target = a.arrays.targets[row + clusters];
    }
    if (!r.has_softmax) {  // the same for the whole cluster
      write_constant(a, row, r, x, kWide * (rank * kThreads + static_cast<int>(threadIdx.x)),
                     blocks * kStep);
      continue;
    }
    const int side = static_cast<int>(round % 2);
    if (threadIdx.x == 0) {
      mailboxes[side].expect(blocks * kWarps * static_cast<int>(sizeof(float4)));
    }
    mine.largest = warp_largest(largest_of(held));
    mine.exponentials = warp_sum(exponentials_of(held, shift_of(mine.largest)));
    if (lane < blocks) {
      mailboxes[side].send(pack_partial(mine), &parts[side][rank * kWarps + warp], lane);
    }
    mailboxes[side].wait(round / 2 % 2);
    ++round;
    const Partial all =
        put_together<kMaxCluster * kWarps>(parts[side], blocks * kWarps, a.smoothing != 0.0F);
    finish_row(a, r, all, factor);
    if (has_target) {
      write_loss(a, row, r, all, at_target);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (slice.column(v) < slice.n) {
        write_gradient(r, again(held[v], a.zero), x, slice.column(v), slice.n, true);
      }
    }
  }
#endif
}

// Launches as many clusters as stay on the device at a time. False where none does.
template <typename T>
bool launch_clusters(const Place& place, const Arguments& arguments, int blocks) {
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
      .zero = 0,
      .arrays = arrays};
  int blocks = 1;
  while (blocks < kMaxCluster && blocks * kHeldByBlock < shape.vocabulary) {
    blocks *= 2;
  }
  const bool held = rule.write_gradient && arguments.aligned &&
                    blocks * kHeldByBlock >= shape.vocabulary && is_hopper_or_newer();
  with_type(shape.dtype, [&]<typename T>() {
    if (!held || !launch_clusters<T>(place, arguments, blocks)) {
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
