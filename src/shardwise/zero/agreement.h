// Ranks agree on whether values that were open for changes are to be shared.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/comm/channel.h"
#include "shardwise/zero/access_levels.h"
#include "shardwise/zero/record_exchange.h"

namespace shardwise::zero {

// What a rank found about open values.
struct Finding {
  std::int32_t modifier = kReadOnly;  // whose changes count, as this rank was told
  std::int32_t left_by_error = 0;     // 1: an error ended the context on this rank
  std::int32_t changed = 0;           // 1: a change that nobody was named for, ...
  std::int32_t reshaped = 0;          // 1: data of another shape was assigned to a parameter
  std::int64_t flat = 0, byte = 0;    // where that is
};

Finding finding_of(const std::optional<AccessLevels::Change>& change, int modifier);

// The first rank with a finding that forbids sharing.
struct Objection {
  int rank = 0;
  Finding finding;
  int modifier = kReadOnly;  // what rank 0 was told
};

class Agreement {
 public:
  Agreement() = default;
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;
  // The same objection on every rank, if there is one. Collective.
  std::optional<Objection> objection(comm::Channel& channel, const Finding& mine,
                                     at::Device device);
  // Takes part as objection() does, for a rank that an error has hit: it waits for nobody, since
  // the others may have been hit too, and throws nothing. The agreement has to live as long as the
  // channel then: a receive that is destroyed before its message comes blocks what comes after it.
  void leave(comm::Channel& channel, int modifier, at::Device device);

 private:
  std::vector<RecordExchange<Finding>> left_;  // still under way
};

// "parameter blocks.0.weight was changed on rank 1 ...", the message for every rank. `what` names
// the values, and the parameter where it was one; `consequence` says what became of the
// change.
std::string in_words(const Objection& objection, const std::string& what,
                     const std::string& consequence);

}  // namespace shardwise::zero
