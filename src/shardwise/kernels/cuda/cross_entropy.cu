// Two forms of the same row:
// - Hopper: a cluster of 1 … 8 blocks holds a row in its registers, so the logits are read once and
//   their gradient is written once. The blocks exchange maximum and sums through distributed shared
//   memory.
// - Other devices and rows that do not fit: a block walks over the row twice.
#include <cooperative_groups.h>

#include <cmath>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kVectors = 8;  // of eight logits in each thread of a cluster
constexpr std::int64_t kHeldByBlock = kThreads * kVectors * kWide;
constexpr int kMaxCluster = 8;  // what every device with clusters can do

// Σ exp(x − largest) and Σ x over some of a row; combining is exact up to rounding in any order.
struct Partial {
  float largest = -INFINITY;
  float exponentials = 0.0F;
  float sum = 0.0F;

  __device__ __forceinline__ void add(const Partial& other) {
    const float both = fmaxf(largest, other.largest);
    // Equal ones may both be infinite.
    const float mine = largest == both ? 1.0F : exp2_of((largest - both) * kLog2E);
    const float theirs = other.largest == both ? 1.0F : exp2_of((other.largest - both) * kLog2E);
    exponentials = exponentials * mine + other.exponentials * theirs;
    sum += other.sum;
    largest = both;
  }
};

// The largest of the first `valid` of eight logits and of `largest`.
__device__ __forceinline__ float largest_of(const Floats8& x, int valid, float largest) {
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    largest = i < valid ? fmaxf(largest, x.at[i]) : largest;
  }
  return largest;
}

// Adds eight logits, of which `valid` count and none is above partial.largest.
__device__ __forceinline__ void add_to(Partial& partial, const Floats8& x, int valid,
                                       bool needs_sum) {
  const float shift = partial.largest == -INFINITY ? 0.0F : partial.largest * kLog2E;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    partial.exponentials += i < valid ? exp2_of(fmaf(x.at[i], kLog2E, -shift)) : 0.0F;
  }
  if (needs_sum) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      partial.sum += i < valid ? x.at[i] : 0.0F;
    }
  }
}

// Of the whole block, the same in every thread.
__device__ __forceinline__ Partial block_partial(Partial mine, Partial* of_warps) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    Partial other;
    other.largest = __shfl_xor_sync(0xFFFFFFFFU, mine.largest, offset);
    other.exponentials = __shfl_xor_sync(0xFFFFFFFFU, mine.exponentials, offset);
    other.sum = __shfl_xor_sync(0xFFFFFFFFU, mine.sum, offset);
    mine.add(other);
  }
  if (threadIdx.x % kWarp == 0) {
    of_warps[threadIdx.x / kWarp] = mine;
  }
  __syncthreads();
  Partial all = of_warps[0];
  for (int warp = 1; warp < kWarps; ++warp) {
    all.add(of_warps[warp]);
  }
  return all;
}

struct Arguments {
  CrossEntropyShape shape;
  std::int64_t ignored;
  float smoothing;
  float z_loss;
  bool write_gradient;
  bool aligned;
  CrossEntropyArrays arrays;
};

// What turns a row's logits into their gradient.
struct Row {
  std::int64_t target;
  float constant;  // of rows without a softmax: 0 if ignored, NaN if the target is outside
  bool has_softmax;
  float log_sum;
  float of_softmax;
  float everywhere;
  float here;
};

__device__ __forceinline__ Row begin_row(const Arguments& a, std::int64_t row) {
  Row r;
  r.target = a.arrays.targets[row];
  const bool ignored = r.target == a.ignored;
  r.has_softmax = !ignored && r.target >= 0 && r.target < a.shape.vocabulary;
  r.constant = ignored ? 0.0F : NAN;
  return r;
}

// `at_target` is read before anything of the row is written.
__device__ __forceinline__ void finish_row(const Arguments& a, std::int64_t row, Row& r,
                                           const Partial& all, float at_target, bool writes_loss) {
  const float weight = a.arrays.weights == nullptr ? 1.0F : a.arrays.weights[row];
  const float count = static_cast<float>(a.shape.vocabulary);
  r.log_sum = (all.largest == -INFINITY ? 0.0F : all.largest) + logf(all.exponentials);
  if (writes_loss) {
    const float smooth = a.smoothing == 0.0F ? 0.0F : a.smoothing * (all.sum / count);
    static_cast<float*>(a.arrays.losses)[row] =
        weight *
        (r.log_sum - (1.0F - a.smoothing) * at_target - smooth + a.z_loss * r.log_sum * r.log_sum);
  }
  const float scale = a.arrays.factor == nullptr ? weight : weight * *a.arrays.factor;
  r.of_softmax = scale * (1.0F + 2.0F * a.z_loss * r.log_sum);
  r.everywhere = scale * a.smoothing / count;
  r.here = scale * (1.0F - a.smoothing);
}

__device__ __forceinline__ Floats8 gradient_of(const Row& r, Floats8 x, int column) {
  const float shift = r.log_sum * kLog2E;
  const int target = static_cast<int>(r.target) - column;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    const float share = exp2_of(fmaf(x.at[i], kLog2E, -shift));
    x.at[i] = r.of_softmax * share - (i == target ? r.everywhere + r.here : r.everywhere);
  }
  return x;
}

__device__ __forceinline__ Floats8 constant_of(const Row& r) {
  Floats8 x;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    x.at[i] = r.constant;
  }
  return x;
}

template <typename T>
__device__ __forceinline__ void write_constant(const Arguments& a, const Row& r, T* x, int first,
                                               int step) {
  const Packed<T> packed = pack<T>(constant_of(r));
  const int n = static_cast<int>(a.shape.vocabulary);
  for (int i = first; a.write_gradient && i < n; i += step) {
    store8(packed, x + i, n - i, a.aligned);
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void walking_kernel(const Arguments a) {
  __shared__ Partial of_warps[kWarps];
  const std::int64_t row = blockIdx.x;
  T* const x = static_cast<T*>(a.arrays.logits) + row * a.shape.row_stride;
  const int n = static_cast<int>(a.shape.vocabulary);
  const int first = kWide * static_cast<int>(threadIdx.x);
  constexpr int kStep = kWide * kThreads;
  Row r = begin_row(a, row);
  if (!r.has_softmax) {
    if (threadIdx.x == 0) {
      static_cast<float*>(a.arrays.losses)[row] = r.constant;
    }
    write_constant(a, r, x, first, kStep);
    return;
  }
  Partial mine;
#pragma unroll 2
  for (int i = first; i < n; i += kStep) {
    const Floats8 values = unpack(load8(x + i, n - i, a.aligned));
    Partial next;
    next.largest = largest_of(values, n - i, mine.largest);
    add_to(next, values, n - i, a.smoothing != 0.0F);
    mine.add(next);
  }
  const float at_target = to_float32(x[r.target]);
  const Partial all = block_partial(mine, of_warps);
  finish_row(a, row, r, all, at_target, threadIdx.x == 0);
#pragma unroll 2
  for (int i = first; a.write_gradient && i < n; i += kStep) {
    const Floats8 values = unpack(load8(x + i, n - i, a.aligned));
    store8(pack<T>(gradient_of(r, values, i)), x + i, n - i, a.aligned);
  }
}

// Two blocks on a multiprocessor where the logits take half of their registers.
template <typename T>
__global__ __launch_bounds__(kThreads,
                             sizeof(T) == 2 ? 2 : 1) void cluster_kernel(const Arguments a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __shared__ Partial of_warps[kWarps];
  __shared__ Partial of_block;
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const std::int64_t row = blockIdx.x / blocks;
  T* const x = static_cast<T*>(a.arrays.logits) + row * a.shape.row_stride;
  const int n = static_cast<int>(a.shape.vocabulary);
  const int first = kWide * (rank * kThreads + static_cast<int>(threadIdx.x));
  const int step = kWide * kThreads * blocks;
  Row r = begin_row(a, row);
  if (!r.has_softmax) {  // the same for the whole cluster
    if (threadIdx.x == 0 && rank == 0) {
      static_cast<float*>(a.arrays.losses)[row] = r.constant;
    }
    write_constant(a, r, x, first, step);
    return;
  }
  Packed<T> held[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first + v * step;
    if (column < n) {
      held[v] = load8(x + column, n - column, a.aligned);
    }
  }
  const float at_target = to_float32(x[r.target]);
  Partial mine;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int valid = n - (first + v * step);
    if (valid > 0) {
      mine.largest = largest_of(unpack(held[v]), valid, mine.largest);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int valid = n - (first + v * step);
    if (valid > 0) {
      add_to(mine, unpack(held[v]), valid, a.smoothing != 0.0F);
    }
  }
  const Partial whole = block_partial(mine, of_warps);
  if (threadIdx.x == 0) {
    of_block = whole;
  }
  cluster.sync();
  Partial all = *cluster.map_shared_rank(&of_block, 0);
  for (int other = 1; other < blocks; ++other) {
    all.add(*cluster.map_shared_rank(&of_block, other));
  }
  finish_row(a, row, r, all, at_target, threadIdx.x == 0 && rank == 0);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first + v * step;
    if (a.write_gradient && column < n) {
      store8(pack<T>(gradient_of(r, unpack(held[v]), column)), x + column, n - column, a.aligned);
    }
  }
  cluster.sync();  // nobody leaves while others read its shared memory
#endif
}

bool device_has_clusters() {
  int device = 0;
  int major = 0;
  check(cudaGetDevice(&device), "cross_entropy");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cross_entropy");
  return major >= 9;
}

template <typename T>
void launch_clusters(const Place& place, const Arguments& arguments, int blocks) {
  cudaLaunchAttribute size;
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim.x = static_cast<unsigned>(blocks);
  size.val.clusterDim.y = 1;
  size.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid_size(arguments.shape.rows * blocks);
  config.blockDim = kThreads;
  config.stream = stream_of(place);
  config.attrs = &size;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, cluster_kernel<T>, arguments), "cross_entropy");
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
      .z_loss = static_cast<float>(rule.z_loss),
      .write_gradient = rule.write_gradient,
      .aligned = is_aligned16(arrays.logits, shape.row_stride * element_size(shape.dtype)),
      .arrays = arrays};
  int blocks = 1;
  while (blocks < kMaxCluster && blocks * kHeldByBlock < shape.vocabulary) {
    blocks *= 2;
  }
  const bool held = blocks * kHeldByBlock >= shape.vocabulary && device_has_clusters();
  with_type(shape.dtype, [&]<typename T>() {
    if (held) {
      launch_clusters<T>(place, arguments, blocks);
    } else {
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
