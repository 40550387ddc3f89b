#include "shardwise/data/permutation.h"

#include <algorithm>
#include <bit>

#include "shardwise/base/check.h"

namespace shardwise::data {
namespace {

// Halves of at least this many bits: smaller ones leave too few round functions to choose from.
constexpr int kLeastHalfBits = 4;
constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ULL;

// The output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014).
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch)
    : size_(static_cast<std::uint64_t>(size)) {
  SW_CHECK(size >= 1 && size <= (std::int64_t{1} << 62), "size ", size);
  half_bits_ = std::max(kLeastHalfBits, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
  std::uint64_t state = mix(mix(seed + kStep) ^ (epoch + kStep));
  for (std::uint64_t& key : keys_) {
    state += kStep;
    key = mix(state);
  }
}

std::uint64_t Permutation::permute(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t next = left ^ (mix(key ^ (right * kStep)) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::int64_t Permutation::operator()(std::int64_t place) const {
  auto value = static_cast<std::uint64_t>(place);
  SW_CHECK_LT(value, size_);
  if (size_ == 1) {
    return 0;
  }
  do {
    value = permute(value);
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

}  // namespace shardwise::data
