// The vocabulary of communication: which collective, who asked for it, and what it moved.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace shardwise::comm {

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll };
inline constexpr int kCollectiveCount = 5;

const char* collective_name(Collective collective);  // "all_gather", ...

// Logical traffic since the last reset. `bytes` counts payload × (N−1)/N per rank and collective,
// an all-reduce twice (ring algorithm), a broadcast once, an all-to-all a rank's mean share of what
// all ranks hold; `elements` likewise. `seconds` is the time on the device where that is measured
// (Channel::measure), else the host's in launches and waits.
struct Traffic {
  std::int64_t calls = 0;
  double elements = 0;
  double bytes = 0;
  double payload_bytes = 0;
  double seconds = 0;

  void add(const Traffic& other) {
    calls += other.calls;
    elements += other.elements;
    bytes += other.bytes;
    payload_bytes += other.payload_bytes;
    seconds += other.seconds;
  }
};

// What hooks see. `who` is the unit, or the purpose ("boundary", "initial weights").
struct CollectiveEvent {
  Collective collective;
  std::string_view who;
  std::int64_t elements;
  std::int64_t bytes;
  int rank;
  int world_size;
};

// Whether a collective has come to its end, at the time of the call, from any thread; null: yes.
using Finished = std::function<bool()>;

// Called on the launching thread around every collective, before the launch and after the wait. On
// a device the wait is the stream's, and the collective ends later.
struct CollectiveHook {
  std::function<void(const CollectiveEvent&)> before_launch;
  std::function<void(const CollectiveEvent&, const Finished& finished)> after_wait;
};

}  // namespace shardwise::comm
