// 64-bit FNV-1a, the one hash used for order and equality checks between ranks.
// Source: Fowler, Noll, Vo; http://www.isthe.com/chongo/tech/comp/fnv/
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardwise {

inline constexpr std::uint64_t kHashSeed = 14695981039346656037ULL;
inline constexpr std::uint64_t kHashPrime = 1099511628211ULL;

inline std::uint64_t hash_bytes(const void* data, std::size_t bytes,
                                std::uint64_t seed = kHashSeed) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) {
    seed = (seed ^ at[i]) * kHashPrime;
  }
  return seed;
}

}  // namespace shardwise
