// A shuffled order of [0, size) that needs no memory: the place of every number is computed.
//
// A Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations from
// pseudorandom functions", SIAM J. Comput. 17, 1988) permutes [0, 2^b) for an even b; numbers that
// fall outside of [0, size) are sent through again until one is inside ("cycle walking": Black and
// Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), which keeps it a permutation and
// takes fewer than four rounds on average, for tiny sizes up to 256 / size.
#pragma once

#include <array>
#include <cstdint>

namespace shardwise::data {

// Immutable. The same on every machine.
class Permutation {
 public:
  // Another order for each seed and epoch. `size` from 1 to 2^62.
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);

  // The number at `place`, both in [0, size).
  std::int64_t operator()(std::int64_t place) const;

 private:
  // Four rounds make the network hard to tell from random for large halves; tiny ones want more.
  static constexpr int kRounds = 8;

  std::uint64_t permute(std::uint64_t value) const;

  std::uint64_t size_;
  int half_bits_;
  std::array<std::uint64_t, kRounds> keys_;
};

}  // namespace shardwise::data
