// The ranks of a job: how they find each other without Python, and the channels between them.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <memory>
#include <string>

#include "shardwise/comm/mesh.h"
#include "shardwise/config/env.h"

namespace shardwise::comm {

// A channel over a process group of torch; a null `backend` is a group of one rank. `timeout` is
// ours: the backend's own should be longer, so that our report comes first.
std::shared_ptr<Channel> make_channel(const c10::intrusive_ptr<c10d::Backend>& backend,
                                      at::Device device, std::chrono::milliseconds timeout,
                                      const std::string& label);

// Meets the other ranks at MASTER_ADDR:MASTER_PORT (rank 0 opens the store there, unless torchrun's
// agent has) and makes both channels: Gloo on the CPU, NCCL on GPUs. One rank alone communicates
// with nobody, unless `force`: then its collectives run through a group of one. Throws
// CommunicationError when the ranks do not meet within `timeout`.
// `shard_size` neighbouring ranks form the shard axis; 0: all.
ShardChannels join_ranks(const config::LaunchEnvironment& environment, at::Device device,
                         std::chrono::milliseconds timeout, bool force, int shard_size = 0);

}  // namespace shardwise::comm
