// Where parameters lie in a flat segment, and which part of it a rank owns. Plain arithmetic.
#pragma once

#include <cstdint>
#include <vector>

namespace shardwise::params {

// Start of every parameter and size of every shard are multiples of this (one memory transaction of
// a GPU; also what 16-byte vector loads and NCCL's aligned paths need).
inline constexpr std::int64_t kAlignmentBytes = 128;

// A half-open range of elements.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end > begin ? end - begin : 0; }
  bool operator==(const Range&) const = default;
};

Range intersect(const Range& a, const Range& b);

// All offsets are in elements from the start of the flat buffer.
struct SegmentLayout {
  std::vector<Range> places;     // one range a parameter, in the order given
  std::int64_t numel = 0;        // with padding; a multiple of the world size
  std::int64_t shard_numel = 0;  // numel / world size
  std::int64_t payload = 0;      // elements without padding

  Range shard_of(int rank) const { return {rank * shard_numel, (rank + 1) * shard_numel}; }
};

// Lays parameters of `numels` elements of `element_bytes` bytes one after the other, each aligned
// to kAlignmentBytes, and pads the whole to world_size × kAlignmentBytes. Parameters without
// elements take no space.
SegmentLayout lay_out(const std::vector<std::int64_t>& numels, std::int64_t element_bytes,
                      int world_size);

}  // namespace shardwise::params
