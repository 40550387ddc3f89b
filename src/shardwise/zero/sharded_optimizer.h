// Master weights and optimizer states as shards, and the fused update over them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/channel.h"
#include "shardwise/optim/update_rule.h"
#include "shardwise/params/registry.h"
#include "shardwise/params/state_view.h"
#include "shardwise/zero/boundary.h"
#include "shardwise/zero/order.h"
#include "shardwise/zero/plan.h"
#include "shardwise/zero/reducer.h"

namespace shardwise::zero {

// Each rank updates its slice of every trainable segment (stage 0: all of it) and, where parameters
// are whole but slices were updated, gathers the new ones. One kernel launch serves all segments.
class ShardedOptimizer {
 public:
  ShardedOptimizer(const params::Registry& registry, const Reducer& reducer,
                   std::unique_ptr<optim::UpdateRule> rule, ZeroPlan plan, int rank);

  // This rank's slices, for the norm. Valid on the device of the parameters.
  const kernels::ChunkTable& norm_table();
  std::int64_t norm_chunk_count() const { return own_.chunk_count; }

  // Hyperparameters of the coming update. Throws UsageError and changes nothing if they do not fit.
  void set_groups(const std::vector<optim::GroupValues>& groups);
  // Throws UsageError if somebody changed 16-bit parameters in place since the last update: their
  // fp32 masters would undo it.
  void check_unchanged() const;
  // Applies the boundary's decision.
  void update(const kernels::Place& place, const Boundary& boundary);
  // Stages 1–2 and units that stay gathered: everybody gets the new parameters.
  void gather_updated(comm::Channel& channel, OrderHash& hash);

  // fp32 slice [update range] of a trainable segment; the parameter itself in fp32 training.
  const params::ShardHandle& master(const params::Segment& segment) const;
  // State `name` of a segment; an undefined handle if the rule has no such state.
  params::ShardHandle state(const params::Segment& segment, const std::string& name) const;
  // This rank's pieces of masters and states.
  params::StateView state_view() const;
  // Of masters of 16-bit parameters and of states that lie in this tier.
  std::int64_t bytes(params::Tier tier) const;
  const optim::UpdateRule& rule() const { return *rule_; }

 private:
  struct Shard {
    params::ShardHandle parameter;  // update range in the training dtype
    params::ShardHandle master;
    std::vector<params::ShardHandle> states;
    params::Range range;  // within the segment
  };
  // Chunk descriptors and segment pointers in device memory.
  struct Table {
    DeviceArray chunks, pointers;
    std::vector<kernels::ShardPointers> uploaded;
    std::int64_t chunk_count = 0;
    kernels::ChunkTable view;
  };

  void make_shard(params::Segment& segment);
  Table make_table(bool own_slice_only) const;
  void refresh(Table& table, bool own_slice_only) const;

  const params::Registry& registry_;
  const Reducer& reducer_;
  std::unique_ptr<optim::UpdateRule> rule_;
  ZeroPlan plan_;
  int rank_;
  std::vector<Shard> shards_;  // by segment id; empty for frozen segments
  Table own_;                  // this rank's slices
  Table whole_;                // stage 0: all of every segment, which each rank updates
};

}  // namespace shardwise::zero
