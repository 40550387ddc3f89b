#include "shardwise/params/layout.h"

#include <algorithm>

#include "shardwise/base/check.h"

namespace shardwise::params {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Range intersect(const Range& a, const Range& b) {
  const Range both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.end > both.begin ? both : Range{both.begin, both.begin};
}

SegmentLayout lay_out(const std::vector<std::int64_t>& numels, std::int64_t element_bytes,
                      int world_size) {
  SW_CHECK_LT(0, element_bytes);
  SW_CHECK_LT(0, world_size);
  const std::int64_t alignment = std::max<std::int64_t>(1, kAlignmentBytes / element_bytes);
  SegmentLayout layout;
  layout.places.reserve(numels.size());
  std::int64_t offset = 0;
  for (const std::int64_t numel : numels) {
    SW_CHECK_LE(0, numel);
    layout.places.push_back({offset, offset + numel});
    layout.payload += numel;
    offset += round_up(numel, alignment);
  }
  layout.numel = round_up(offset, alignment * world_size);
  layout.shard_numel = layout.numel / world_size;
  return layout;
}

}  // namespace shardwise::params
