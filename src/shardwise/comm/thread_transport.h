// Ranks as threads of one process: multi-rank logic is tested without processes or sockets.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "shardwise/comm/mesh.h"

namespace shardwise::comm {

// One transport a rank over CPU tensors. Every collective blocks until all ranks have called it
// with the same kind and sizes; a rank that calls something else, or that stays away longer than
// `timeout`, makes it throw CommunicationError on the ranks that came.
std::vector<std::shared_ptr<Transport>> make_thread_transports(int world_size,
                                                               std::chrono::milliseconds timeout);

// Runs body(channels) on `world_size` threads, each with its own pair of channels, and rethrows the
// first error of the lowest rank.
void run_ranks(int world_size, const std::function<void(const ShardChannels&)>& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(20));

}  // namespace shardwise::comm
