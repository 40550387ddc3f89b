// The merges of a BPE model: which two tokens become which one, and how early.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardwise::data {

struct Merge {
  std::uint32_t rank = 0;  // lower ones are done first
  std::uint32_t token = 0;
};

// A hash table with open addressing; built once, then immutable.
class MergeTable {
 public:
  // For `count` merges at most.
  explicit MergeTable(std::size_t count);

  // A pair that is there already gets the new merge.
  void set(std::uint32_t left, std::uint32_t right, Merge merge);
  // Null where the two do not merge.
  const Merge* find(std::uint32_t left, std::uint32_t right) const;

 private:
  struct Slot {
    std::uint64_t pair = 0;
    Merge merge;
    bool used = false;
  };

  std::size_t place(std::uint64_t pair) const;

  std::vector<Slot> slots_;
  std::size_t mask_;
};

}  // namespace shardwise::data
