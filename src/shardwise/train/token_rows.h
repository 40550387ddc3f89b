// Samples of a corpus as a model takes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "shardwise/data/corpus.h"
#include "shardwise/models/model.h"

namespace shardwise::train {

// The ids as the data module fills them in.
inline std::span<std::int64_t> values(const at::Tensor& ids) {
  return {ids.data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())};
}

// `ids` [samples, length] on the CPU, with their documents where these are to be kept apart.
models::Tokens token_rows(const at::Tensor& ids, const data::DocumentOffsets& documents);

}  // namespace shardwise::train
