// A sink that fails does not stop the training.
#pragma once

#include <memory>
#include <string>

#include "shardwise/monitor/monitor.h"

namespace shardwise::monitor {

// Passes calls on to `sink` until one throws. Then the sink is dropped with one warning in the log:
// "<what>: <error>; the training goes on without it". `what`: "the report".
std::unique_ptr<Sink> make_guarded(std::string what, std::unique_ptr<Sink> sink);

}  // namespace shardwise::monitor
