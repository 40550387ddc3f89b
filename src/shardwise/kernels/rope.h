// Rotary position embeddings (Su et al. 2021, https://arxiv.org/abs/2104.09864) of rows that hold
// several heads side by side, such as the product of a fused q, k, v projection.
#pragma once

#include <cstdint>

#include "shardwise/kernels/types.h"

namespace shardwise::kernels {

struct RopeShape {
  DType dtype = DType::kFloat32;
  std::int64_t tokens = 0;
  std::int64_t row_stride = 0;  // elements from token to token, heads · head_dim or more
  std::int64_t heads = 0;       // the row's first ones are rotated, what follows stays
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;  // even, the first dimensions of a head; the others stay
  // true: pairs are (2i, 2i + 1), as in GPT-J; false: (i, i + rotary_dim / 2), as in GPT-NeoX,
  // Llama
  bool interleaved = false;
  bool inverse = false;       // rotates back: the gradient of the rotation
  std::int64_t sequence = 1;  // position of token t is t mod sequence, where no positions are given
};

// (a, b) -> (a·cos − b·sin, b·cos + a·sin) for each pair, in fp32 (fp64 for fp64), rounded once.
// `from` and `to` have the same shape and may be the same; what is not rotated is not copied.
// cosines, sines: [positions, rotary_dim / 2]. positions: [tokens] rows of these, or null.
void rope(const Place& place, const RopeShape& shape, const void* from, void* to,
          const float* cosines, const float* sines, const std::int64_t* positions);

}  // namespace shardwise::kernels
