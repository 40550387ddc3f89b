// A thread rotates the same eight pairs of several heads of one token: their cosines and sines are
// read once. Rows that 16-byte accesses do not fit are rotated pair by pair.
#include <algorithm>
#include <cstdint>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHeads = 2;  // of one thread: 64 bytes of 16-bit elements on their way

__device__ __forceinline__ void rotate(float cosine, float sine, float& a, float& b) {
  const float first = a;
  a = first * cosine - b * sine;
  b = b * cosine + first * sine;
}

// What the threads of a launch share.
struct Layout {
  RopeShape shape;
  std::uint32_t threads_of_token;
  std::uint32_t threads;
  int head_groups;  // a thread's heads are so far apart: neighbours work on neighbouring heads
};

// Cosines or sines of the pairs in a thread's two eights of elements: eight pairs of (i, i + half),
// or four and four neighbouring pairs that lie half a head apart.
__device__ __forceinline__ Floats8 load_angles(const float* from, bool interleaved, int half) {
  const float4 low = *reinterpret_cast<const float4*>(from);
  const float4 high = *reinterpret_cast<const float4*>(from + (interleaved ? half / 2 : 4));
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

// Eight pairs of several heads: the elements first … first + 7 of a head and those half behind.
template <typename T>
__device__ __forceinline__ void rotate_wide(const Layout& layout, const T* from, T* to, int group,
                                            int first, const float* cosines, const float* sines) {
  const RopeShape& s = layout.shape;
  const int half = static_cast<int>(s.rotary_dim) / 2;
  Packed<T> a[kHeads];
  Packed<T> b[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int head = group + h * layout.head_groups;
    if (head < s.heads) {
      a[h] = load8(from + head * s.head_dim + first);
      b[h] = load8(from + head * s.head_dim + first + half);
    }
  }
  const int angle = s.interleaved ? first / 2 : first;
  const Floats8 c = load_angles(cosines + angle, s.interleaved, half);
  Floats8 d = load_angles(sines + angle, s.interleaved, half);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    d.at[i] = s.inverse ? -d.at[i] : d.at[i];
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int head = group + h * layout.head_groups;
    if (head < s.heads) {
      Floats8 left = unpack(a[h]);
      Floats8 right = unpack(b[h]);
      if (s.interleaved) {
#pragma unroll
        for (int i = 0; i < kWide / 2; ++i) {
          rotate(c.at[i], d.at[i], left.at[2 * i], left.at[2 * i + 1]);
          rotate(c.at[kWide / 2 + i], d.at[kWide / 2 + i], right.at[2 * i], right.at[2 * i + 1]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          rotate(c.at[i], d.at[i], left.at[i], right.at[i]);
        }
      }
      store8(pack<T>(left), to + head * s.head_dim + first);
      store8(pack<T>(right), to + head * s.head_dim + first + half);
    }
  }
}

// One pair of several heads.
template <typename T>
__device__ __forceinline__ void rotate_pair(const Layout& layout, const T* from, T* to, int group,
                                            int pair, float cosine, float sine) {
  const RopeShape& s = layout.shape;
  const std::int64_t apart = s.interleaved ? 1 : s.rotary_dim / 2;
  for (int head = group; head < s.heads; head += layout.head_groups) {
    const std::int64_t at = head * s.head_dim + (s.interleaved ? 2 * pair : pair);
    float left = to_float32(from[at]);
    float right = to_float32(from[at + apart]);
    rotate(cosine, s.inverse ? -sine : sine, left, right);
    from_float32(left, to + at);
    from_float32(right, to + at + apart);
  }
}

// Threads are numbered by token, heads, pairs; the last runs fastest. kPairs: 8, or 1 for rows that
// do not fit. Numbers of threads and tokens have 32 bits: divisions of 64 take longer than the
// rest.
template <typename T, int kPairs>
__global__ __launch_bounds__(kThreads) void rope_kernel(const Layout layout, const T* from, T* to,
                                                        const float* cosines, const float* sines,
                                                        const std::int64_t* positions) {
  const RopeShape& s = layout.shape;
  const std::uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  if (thread >= layout.threads) {
    return;
  }
  const std::uint32_t token = thread / layout.threads_of_token;
  const std::uint32_t work = thread % layout.threads_of_token;
  const auto half = static_cast<std::uint32_t>(s.rotary_dim) / 2;
  const int group = static_cast<int>(work / (half / kPairs));
  const int first = static_cast<int>(work % (half / kPairs)) * kPairs;
  const std::int64_t position =
      positions == nullptr ? token % static_cast<std::uint32_t>(s.sequence) : positions[token];
  from += token * s.row_stride;
  to += token * s.row_stride;
  cosines += position * half;
  sines += position * half;
  if constexpr (kPairs == 1) {
    rotate_pair(layout, from, to, group, first, cosines[first], sines[first]);
  } else {
    rotate_wide(layout, from, to, group, first, cosines, sines);
  }
}

template <typename T, int kPairs>
void launch(const Place& place, const RopeShape& s, const T* from, T* to, const float* cosines,
            const float* sines, const std::int64_t* positions) {
  const std::int64_t head_groups = (s.heads + kHeads - 1) / kHeads;
  const std::int64_t of_token = head_groups * (s.rotary_dim / 2 / kPairs);
  const std::int64_t threads = s.tokens * of_token;
  SW_CHECK(threads < (std::int64_t{1} << 32) - kThreads, "rope of ", s.tokens, " tokens");
  Layout layout{.shape = s,
                .threads_of_token = static_cast<std::uint32_t>(of_token),
                .threads = static_cast<std::uint32_t>(threads),
                .head_groups = static_cast<int>(head_groups)};
  // Longer than the tokens is as good as any.
  layout.shape.sequence = std::min<std::int64_t>(s.sequence, std::int64_t{1} << 31);
  rope_kernel<T, kPairs>
      <<<grid_size((threads + kThreads - 1) / kThreads), kThreads, 0, stream_of(place)>>>(
          layout, from, to, cosines, sines, positions);
  check_launch("rope");
}

}  // namespace

void rope(const Place& place, const RopeShape& s, const void* from, void* to, const float* cosines,
          const float* sines, const std::int64_t* positions) {
  with_type(s.dtype, [&]<typename T>() {
    const auto bytes = static_cast<std::int64_t>(sizeof(T));
    const bool wide = s.rotary_dim % (2 * kWide) == 0 && is_aligned16(from, s.row_stride * bytes) &&
                      is_aligned16(to, s.row_stride * bytes) && s.head_dim * bytes % 16 == 0 &&
                      is_aligned16(cosines, 0) && is_aligned16(sines, 0);
    const auto run = wide ? launch<T, kWide> : launch<T, 1>;
    run(place, s, static_cast<const T*>(from), static_cast<T*>(to), cosines, sines, positions);
  });
}

}  // namespace shardwise::kernels::cuda
