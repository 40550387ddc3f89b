// Where the ranks of a job find each other.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>

#include "shardwise/config/env.h"

namespace shardwise::comm {

// The store at MASTER_ADDR:MASTER_PORT, once all ranks have come to it: rank 0 opens it there,
// unless torchrun's agent has. Collective. `while_waiting` is called in this thread several times a
// second and ends the wait by throwing. Throws CommunicationError that says who is missing, or what
// is wrong with address or port, when the ranks do not meet within `timeout`; also where something
// that is no store listens there and never answers.
c10::intrusive_ptr<c10d::Store> meet_ranks(const config::LaunchEnvironment& environment,
                                           std::chrono::milliseconds timeout,
                                           const std::function<void()>& while_waiting = {});

// What an exception of torch says, without its list of C++ frames.
std::string reason_of(const std::exception& error);

}  // namespace shardwise::comm
