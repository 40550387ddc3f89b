#include "shardwise/data/merge_table.h"

#include <bit>

namespace shardwise::data {
namespace {

std::uint64_t pair_of(std::uint32_t left, std::uint32_t right) {
  return (std::uint64_t{left} << 32) | right;
}

}  // namespace

// At most half full.
MergeTable::MergeTable(std::size_t count)
    : slots_(std::bit_ceil(2 * count + 2)), mask_(slots_.size() - 1) {}

// The slot of the pair, or the free one where it would be.
std::size_t MergeTable::place(std::uint64_t pair) const {
  const std::uint64_t hash =
      pair * 0x9E3779B97F4A7C15ULL;  // Fibonacci hashing: 2^64 / golden ratio
  std::size_t at = static_cast<std::size_t>(hash ^ (hash >> 32)) & mask_;
  while (slots_[at].used && slots_[at].pair != pair) {
    at = (at + 1) & mask_;
  }
  return at;
}

void MergeTable::set(std::uint32_t left, std::uint32_t right, Merge merge) {
  const std::uint64_t pair = pair_of(left, right);
  slots_[place(pair)] = {pair, merge, true};
}

const Merge* MergeTable::find(std::uint32_t left, std::uint32_t right) const {
  const Slot& slot = slots_[place(pair_of(left, right))];
  return slot.used ? &slot.merge : nullptr;
}

}  // namespace shardwise::data
