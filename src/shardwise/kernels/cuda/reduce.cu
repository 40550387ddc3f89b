// Sums over ranks: every thread owns its elements for all ranks, so the order is the ranks' order.
#include <algorithm>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/vectors.cuh"
#include "shardwise/kernels/formulas.h"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Blocks beyond this repeat with a stride: 16 rounds of 8 resident blocks on 132 multiprocessors.
constexpr std::int64_t kMaxBlocks = 132 * 8 * 16;

template <typename O, typename I>
struct RankedSlices {
  O* out;
  const I* in;
  int world;
  std::int64_t n;
  std::int64_t stride;
  float scale;
  bool accumulate;
};

template <typename O, typename I>
__device__ __forceinline__ void sum_one(const RankedSlices<O, I>& s, std::int64_t i) {
  float sum = to_float32(s.in[i]);
  for (int rank = 1; rank < s.world; ++rank) {
    sum += to_float32(s.in[rank * s.stride + i]);
  }
  const float old = s.accumulate ? to_float32(s.out[i]) : 0.0F;
  from_float32(scaled_sum(sum, s.scale, s.accumulate, old), s.out + i);
}

template <typename O, typename I>
__device__ __forceinline__ void sum_four(const RankedSlices<O, I>& s, std::int64_t i) {
  Floats4 sum = load4(s.in + i);
#pragma unroll 4
  for (int rank = 1; rank < s.world; ++rank) {
    const Floats4 next = load4(s.in + rank * s.stride + i);
    for (int lane = 0; lane < 4; ++lane) {
      sum.at[lane] += next.at[lane];
    }
  }
  Floats4 old = {};
  if (s.accumulate) {
    old = load4(s.out + i);
  }
  for (int lane = 0; lane < 4; ++lane) {
    sum.at[lane] = scaled_sum(sum.at[lane], s.scale, s.accumulate, old.at[lane]);
  }
  store4(sum, s.out + i);
}

template <typename O, typename I>
__global__ __launch_bounds__(kThreads) void sum_ranked_kernel(const RankedSlices<O, I> s,
                                                              bool aligned) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const std::int64_t quads = aligned ? s.n / 4 : 0;
  for (std::int64_t quad = thread; quad < quads; quad += threads) {
    sum_four(s, 4 * quad);
  }
  for (std::int64_t i = 4 * quads + thread; i < s.n; i += threads) {
    sum_one(s, i);
  }
}

template <typename O, typename I>
void launch(const Place& place, const RankedSlices<O, I>& s) {
  const bool aligned =
      is_aligned4(s.out) && is_aligned4(s.in) && (s.world == 1 || s.stride % 4 == 0);
  const std::int64_t blocks = (s.n + 4 * kThreads - 1) / (4 * kThreads);
  sum_ranked_kernel<O, I>
      <<<grid_size(std::min(blocks, kMaxBlocks)), kThreads, 0, stream_of(place)>>>(s, aligned);
  check_launch("sum_ranked");
}

template <typename O>
void choose_input(const Place& place, RankedSlices<O, void> s, DType in_dtype) {
  const auto with = [&s]<typename I>(const I* in) {
    return RankedSlices<O, I>{s.out, in, s.world, s.n, s.stride, s.scale, s.accumulate};
  };
  switch (in_dtype) {
    case DType::kFloat32: return launch(place, with(static_cast<const float*>(s.in)));
    case DType::kFloat16: return launch(place, with(static_cast<const Half*>(s.in)));
    case DType::kBFloat16: return launch(place, with(static_cast<const BFloat16*>(s.in)));
    case DType::kFloat64: break;  // refused by the caller
  }
}

}  // namespace

void sum_ranked(const Place& place, void* out, DType out_dtype, const void* in, DType in_dtype,
                int world, std::int64_t n, std::int64_t stride, double scale, bool accumulate) {
  const auto run = [&]<typename O>(O* typed) {
    choose_input(
        place,
        RankedSlices<O, void>{typed, in, world, n, stride, static_cast<float>(scale), accumulate},
        in_dtype);
  };
  switch (out_dtype) {
    case DType::kFloat32: return run(static_cast<float*>(out));
    case DType::kFloat16: return run(static_cast<Half*>(out));
    case DType::kBFloat16: return run(static_cast<BFloat16*>(out));
    case DType::kFloat64: break;  // refused by the caller
  }
}

void copy(const Place& place, void* out, const void* in, std::int64_t bytes) {
  check(cudaMemcpyAsync(out, in, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                        stream_of(place)),
        "convert");
}

}  // namespace shardwise::kernels::cuda
