#include "shardwise/params/unit.h"

#include <ATen/core/TensorBase.h>

namespace shardwise::params {

std::int64_t ShardHandle::bytes() const {
  return data_.defined() ? static_cast<std::int64_t>(data_.nbytes()) : 0;
}

std::int64_t Segment::bytes() const {
  return layout.numel * static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::int64_t Unit::numel() const {
  std::int64_t total = 0;
  for (const auto& segment : segments) {
    total += segment->layout.numel;
  }
  return total;
}

}  // namespace shardwise::params
