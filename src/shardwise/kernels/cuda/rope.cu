// A thread rotates the same eight pairs of several heads of one token: their cosines and sines are
// read once. Rows that 16-byte accesses do not fit are rotated pair by pair.
#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/wide.cuh"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHeads = 4;  // of one thread: 128 bytes of 16-bit elements on their way

__device__ __forceinline__ void rotate(float cosine, float sine, float& a, float& b) {
  const float first = a;
  a = first * cosine - b * sine;
  b = b * cosine + first * sine;
}

// kPairs: 8, or 1 for rows that do not fit.
template <typename T, int kPairs>
__device__ __forceinline__ void rotate_heads(const RopeShape& s, const T* from, T* to, int head,
                                             int pair, const float* cosines, const float* sines) {
  const int half = static_cast<int>(s.rotary_dim) / 2;
  const int count = min(kHeads, static_cast<int>(s.heads) - head);
  const std::int64_t first = head * s.head_dim + (s.interleaved ? 2 * pair : pair);
  const std::int64_t second = first + (s.interleaved ? kPairs : half);
  if constexpr (kPairs == 1) {
    for (int h = 0; h < count; ++h) {
      float left = to_float32(from[first + h * s.head_dim]);
      float right = to_float32(from[second + h * s.head_dim]);
      rotate(*cosines, s.inverse ? -*sines : *sines, left, right);
      from_float32(left, to + first + h * s.head_dim);
      from_float32(right, to + second + h * s.head_dim);
    }
  } else {
    Packed<T> a[kHeads];
    Packed<T> b[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h < count) {
        a[h] = load8(from + first + h * s.head_dim, kWide, true);
        b[h] = load8(from + second + h * s.head_dim, kWide, true);
      }
    }
    const Floats8 c = unpack(load8(cosines, kWide, true));
    Floats8 d = unpack(load8(sines, kWide, true));
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      d.at[i] = s.inverse ? -d.at[i] : d.at[i];
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h < count) {
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
        store8(pack<T>(left), to + first + h * s.head_dim, kWide, true);
        store8(pack<T>(right), to + second + h * s.head_dim, kWide, true);
      }
    }
  }
}

// Threads are numbered by token, four heads, pairs; the last runs fastest.
template <typename T, int kPairs>
__global__ __launch_bounds__(kThreads) void rope_kernel(const RopeShape s, const T* from, T* to,
                                                        const float* cosines, const float* sines,
                                                        const std::int64_t* positions,
                                                        int threads_of_token) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t token = thread / threads_of_token;
  if (token >= s.tokens) {
    return;
  }
  const int half = static_cast<int>(s.rotary_dim) / 2;
  const int groups = half / kPairs;
  const int work = static_cast<int>(thread % threads_of_token);
  const int pair = work % groups * kPairs;
  const std::int64_t position = positions == nullptr ? token % s.sequence : positions[token];
  const std::int64_t angle = position * half + pair;
  rotate_heads<T, kPairs>(s, from + token * s.row_stride, to + token * s.row_stride,
                          work / groups * kHeads, pair, cosines + angle, sines + angle);
}

template <typename T, int kPairs>
void launch(const Place& place, const RopeShape& s, const T* from, T* to, const float* cosines,
            const float* sines, const std::int64_t* positions) {
  const std::int64_t of_token = (s.heads + kHeads - 1) / kHeads * (s.rotary_dim / 2 / kPairs);
  const std::int64_t blocks = (s.tokens * of_token + kThreads - 1) / kThreads;
  rope_kernel<T, kPairs><<<grid_size(blocks), kThreads, 0, stream_of(place)>>>(
      s, from, to, cosines, sines, positions, static_cast<int>(of_token));
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
