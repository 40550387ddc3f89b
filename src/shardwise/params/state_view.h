// What a checkpoint sees of an engine: named global tensors and the pieces of them that this rank
// holds. Nothing in it refers to units, rings or stages.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "shardwise/params/layout.h"

namespace shardwise::params {

// One piece of one state of one parameter. `elements` counts within the flattened parameter in
// memory order (strides as given), `data` is the contiguous piece itself.
struct StatePiece {
  std::string parameter;              // canonical name
  std::string kind;                   // "parameter", "master", "exp_avg", ...
  std::vector<std::int64_t> sizes;    // of the whole parameter
  std::vector<std::int64_t> strides;  // of the whole parameter
  Range elements;
  at::Tensor data;
};

using StateView = std::vector<StatePiece>;

}  // namespace shardwise::params
