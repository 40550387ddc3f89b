// The order of operations: recorded to gather ahead, and hashed to prove that all ranks agree.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shardwise/base/hash.h"
#include "shardwise/comm/channel.h"
#include "shardwise/params/registry.h"

namespace shardwise::zero {

// One operation on a unit, or a parameter that was unfrozen.
struct OrderEntry {
  static constexpr std::int32_t kUnfrozen = -2;
  std::int32_t collective = -1;  // a comm::Collective, or kUnfrozen
  std::int32_t unit = -1;        // or the parameter's index
  bool operator==(const OrderEntry&) const = default;
};

// Running hash of the operations since the last reset. Two blocks of equal size swapped on one rank
// would not hang but mix silently; the hash travels with the boundary and shows it. The operations
// themselves are kept for one step more, to name the first that differed.
class OrderHash {
 public:
  // `detail`, such as a parameter of the unit, counts in the hash and is not kept.
  void add(comm::Collective collective, int unit, std::int32_t detail = -1) {
    const OrderEntry entry{static_cast<std::int32_t>(collective), unit};
    value_ = hash_bytes(&detail, sizeof(detail), value_);
    value_ = hash_bytes(&entry, sizeof(entry), value_);
    if (entries_.size() < kKeptEntries) {
      entries_.push_back(entry);
    }
  }
  // Parameters, by index, that were unfrozen. They come first in an explanation, whatever else the
  // ranks do because of them.
  void add_unfrozen(const std::set<int>& parameters);
  std::uint64_t value() const { return value_; }
  void reset() {
    value_ = kHashSeed;
    last_entries_.swap(entries_);
    entries_.clear();
  }
  // The operations before the last reset.
  const std::vector<OrderEntry>& last_entries() const { return last_entries_; }

  // Operations kept for an explanation; a step of 80 layers has about 320.
  static constexpr std::size_t kKeptEntries = 4096;

 private:
  std::uint64_t value_ = kHashSeed;
  std::vector<OrderEntry> entries_;
  std::vector<OrderEntry> last_entries_;
};

// The first operation before the last reset in which a rank differs from rank 0, in words.
// Collective: all ranks call it after a mismatch.
std::string explain_order_difference(comm::Channel& channel, const OrderHash& hash,
                                     const params::Registry& registry, at::Device device);

// The sequence in which units are acquired from one root forward to the next, separately for passes
// with and without gradients. A pass that differs from the record is gathered on demand from there
// on, and becomes the new record.
class AcquireOrder {
 public:
  // A pass begins. Returns true if the pass before it differed from its record.
  bool begin(bool training);
  void advance(int unit);
  // Recorded units after the last one acquired; empty when unknown.
  std::span<const int> ahead() const;
  // The record of passes with gradients, or what the present one would make it.
  std::span<const int> training() const;

 private:
  std::vector<int> recorded_[2];
  std::vector<int> current_;
  int mode_ = 0;
  bool diverged_ = false;
};

}  // namespace shardwise::zero
