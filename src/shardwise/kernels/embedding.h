// The gradient of a table of embeddings: rows of the same token are summed in order, without
// atomics.
#pragma once

#include <cstdint>

#include "shardwise/kernels/types.h"

namespace shardwise::kernels {

struct EmbeddingShape {
  DType dtype = DType::kFloat32;        // of the rows' gradients
  DType table_dtype = DType::kFloat32;  // of the table's gradient: dtype or fp32
  std::int64_t tokens = 0;
  std::int64_t width = 0;
  std::int64_t vocabulary = 0;
  std::int64_t padding = -1;  // rows of this token are left out; −1: none
  bool accumulate = false;  // adds to the table's gradient; false: replaces the rows of tokens seen
};

struct EmbeddingArrays {
  const std::int64_t* sorted = nullptr;  // [tokens]: ids, ascending
  const std::int64_t* order = nullptr;   // [tokens]: row of `gradients` that belongs to sorted[i]
  const void* gradients = nullptr;       // [tokens, width]
  void* table = nullptr;                 // [vocabulary, width]; rows of unseen tokens stay
  float* partials = nullptr;             // embedding_partials() numbers
};
// Sums are in fp32 (fp64 for fp64), in the order of `sorted`, and rounded once. Ids outside of the
// table are left out.
void embedding_backward(const Place& place, const EmbeddingShape& shape,
                        const EmbeddingArrays& arrays);

// How many numbers embedding_backward needs in `partials`.
std::int64_t embedding_partials(const Place& place, const EmbeddingShape& shape);

}  // namespace shardwise::kernels
