// Ranks stay equal: what several ranks hold copies of has the same bits on all of them.
#pragma once

#include "shardwise/comm/mesh.h"
#include "shardwise/params/registry.h"

namespace shardwise::zero {

// Throws CommunicationError on every rank, with the first parameter and rank that differ, unless
// all copies of parameters agree: whole segments on all ranks, shards on the ranks that hold the
// same one. Costs a pass over them and a wait for the device. Collective.
void check_replicas(const comm::ShardChannels& channels, const params::Registry& registry);

}  // namespace shardwise::zero
