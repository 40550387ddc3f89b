// The latest collectives of an engine, for reports about ranks that wait.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/channel.h"

namespace shardwise::diagnostics {

// Listens to channels, which it does not keep alive. Everything may be called from any thread.
class FlightRecorder {
 public:
  explicit FlightRecorder(const std::vector<comm::Channel*>& channels);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // What this rank began and has not finished waiting for, or what a device still carries out, in
  // the order of its beginning, such as {"all_gather for blocks.3", ...}.
  std::vector<std::string> under_way() const;
  // "all_gather for blocks.2", the last one that it has finished; "" before the first.
  std::string last_finished() const;
  // Collectives begun so far.
  std::int64_t count() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // hooks may run while the recorder goes
  std::vector<comm::HookHandle> hooks_;
};

}  // namespace shardwise::diagnostics
