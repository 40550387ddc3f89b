#include "shardwise/kernels/rope.h"

#include "shardwise/base/check.h"
#include "shardwise/kernels/cpu/elements.h"
#include "shardwise/kernels/cpu/loops_choice.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"

namespace shardwise::kernels {
namespace {

using cpu::Compute;

template <typename T>
void rotate_head(const RopeShape& shape, const T* from, T* to, const float* cosines,
                 const float* sines) {
  using C = Compute<T>;
  const std::int64_t half = shape.rotary_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const std::int64_t first = shape.interleaved ? 2 * i : i;
    const std::int64_t second = first + (shape.interleaved ? 1 : half);
    const C cosine = cosines[i];
    const C sine = shape.inverse ? -sines[i] : sines[i];
    const C a = cpu::load(from + first);
    const C b = cpu::load(from + second);
    cpu::store<T>(a * cosine - b * sine, to + first);
    cpu::store<T>(b * cosine + a * sine, to + second);
  }
}

}  // namespace

void rope(const Place& place, const RopeShape& shape, const void* from, void* to,
          const float* cosines, const float* sines, const std::int64_t* positions) {
  SW_CHECK(shape.rotary_dim % 2 == 0 && shape.rotary_dim <= shape.head_dim, "rotary_dim ",
           shape.rotary_dim, ", head_dim ", shape.head_dim);
  SW_CHECK_LE(shape.heads * shape.head_dim, shape.row_stride);
  SW_CHECK_GE(shape.sequence, 1);
  if (shape.tokens == 0 || shape.heads == 0 || shape.rotary_dim == 0) {
    return;
  }
  if (place.cuda) {
    cuda::rope(place, shape, from, to, cosines, sines, positions);
    return;
  }
  const std::int64_t half = shape.rotary_dim / 2;
  const std::int64_t grain = 1 + 16384 / (shape.heads * half);  // above the cost of a thread
  cpu::with_type(shape.dtype, [&]<typename T>() {
    cpu::for_ranges(place, shape.tokens, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t token = begin; token < end; ++token) {
        const std::int64_t position =
            positions == nullptr ? token % shape.sequence : positions[token];
        for (std::int64_t head = 0; head < shape.heads; ++head) {
          const std::int64_t start = token * shape.row_stride + head * shape.head_dim;
          rotate_head<T>(shape, static_cast<const T*>(from) + start, static_cast<T*>(to) + start,
                         cosines + position * half, sines + position * half);
        }
      }
    });
  });
}

}  // namespace shardwise::kernels
