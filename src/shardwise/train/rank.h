// This process among the ranks of its job.
#pragma once

#include <ATen/core/Tensor.h>

#include "shardwise/comm/mesh.h"
#include "shardwise/config/config.h"
#include "shardwise/config/env.h"

namespace shardwise::train {

struct Rank {
  int rank = 0;
  int world_size = 1;
  at::Device device = at::kCPU;
  comm::ShardChannels channels;
};

// Joins the other ranks of the job that the environment describes (torchrun, `shardwise launch`, or
// one process alone), on a GPU where there is one. Collective. Throws CommunicationError when the
// ranks do not meet within shardwise.timeout_seconds.
Rank join_job(const config::LaunchEnvironment& environment, const config::Settings& settings,
              const config::Config& config);

}  // namespace shardwise::train
