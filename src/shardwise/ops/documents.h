// Several documents in the rows of a batch ("packed" rows), of which none sees another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace shardwise::ops {

struct Documents {
  // int32 [documents + 1], on the rows' device: where each document begins in the tokens of all
  // rows, row by row, then the number of tokens. Every row begins one; some may be empty.
  at::Tensor offsets;
  // At least the tokens of the longest. The host needs it and cannot read it from a GPU without
  // waiting. Rotary embeddings whose frequencies follow the length take it for that.
  std::int64_t longest = 0;
};

// Throws UsageError unless the documents fill `batch` rows of `sequence` tokens on `device`. Does
// not look at the values on a GPU, which would wait, and under a tracer.
void check_documents(const Documents& documents, std::int64_t batch, std::int64_t sequence,
                     at::Device device);

// [batch, seq] int32: the number of each token's document.
at::Tensor document_numbers(const Documents& documents, std::int64_t batch, std::int64_t sequence);

// [batch, seq] int64: the place of each token in its document.
at::Tensor document_positions(const Documents& documents, std::int64_t batch,
                              std::int64_t sequence);

}  // namespace shardwise::ops
