// The ranks of a job: how they find each other without Python, and the channels between them.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <memory>
#include <string>

#include "shardwise/comm/mesh.h"
#include "shardwise/config/env.h"

namespace shardwise::comm {

struct GroupOptions {
  bool force = false;  // collectives of one rank alone run through a group of one
  int shard_size = 0;  // neighbouring ranks that form the shard axis; 0: all
  int max_ctas = 0;    // thread blocks of a collective on a GPU; 0: NCCL decides
};

// A channel over a process group of torch; a null `backend` is a group of one rank. `timeout` is
// ours: the backend's own should be longer, so that our report comes first.
std::shared_ptr<Channel> make_channel(const c10::intrusive_ptr<c10d::Backend>& backend,
                                      at::Device device, std::chrono::milliseconds timeout,
                                      const std::string& label);

// Meets the other ranks at MASTER_ADDR:MASTER_PORT (rank 0 opens the store there, unless torchrun's
// agent has) and makes both channels: Gloo on the CPU, NCCL on GPUs. One rank alone communicates
// with nobody. Throws CommunicationError when the ranks do not meet within `timeout`.
ShardChannels join_ranks(const config::LaunchEnvironment& environment, at::Device device,
                         std::chrono::milliseconds timeout, const GroupOptions& options = {});

}  // namespace shardwise::comm
