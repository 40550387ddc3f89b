// Whole tensors from shards, and back. For users, not for steps: everything here is collective and
// allocates.
#pragma once

#include <string>

#include "shardwise/comm/mesh.h"
#include "shardwise/params/registry.h"
#include "shardwise/zero/reducer.h"
#include "shardwise/zero/sharded_optimizer.h"

namespace shardwise::zero {

class FullState {
 public:
  FullState(const params::Registry& registry, const comm::ShardChannels& channels, ZeroPlan plan);

  // A copy of one state of one parameter in its own shape: "parameter" in the training dtype,
  // "master" or an optimizer state in fp32; a frozen parameter has only "parameter". Undefined if
  // the optimizer has no state of that name.
  at::Tensor get(int parameter, const std::string& kind, const ShardedOptimizer* optimizer);
  // The gradient averaged over ranks, still multiplied with the loss scale. Undefined where there
  // is no gradient.
  at::Tensor gradient(int parameter, Reducer& reducer);
  // One tensor from the pieces that the ranks hold of it, as ShardedOptimizer::pieces cuts them;
  // undefined if no rank has one.
  at::Tensor assemble(int parameter, const at::Tensor& piece);
  // The flat values [layout.numel] of a segment of which this rank holds `shard`.
  at::Tensor whole_segment(const params::Segment& segment, const at::Tensor& shard);
  // Overwrites a parameter, and its master, with `value` (same shape, equal on all ranks).
  void set(int parameter, const at::Tensor& value, ShardedOptimizer* optimizer);
  // The same for "master" (and the parameter with it) or a state; false where there is none.
  bool set_state(int parameter, const std::string& kind, const at::Tensor& value,
                 ShardedOptimizer* optimizer);
  // `value`: averaged over ranks, multiplied with the loss scale. False where the parameter has no
  // gradient, which is before the first backward too.
  bool set_gradient(int parameter, const at::Tensor& value, Reducer& reducer);
  // This rank's elements of "master", "gradient" or a state, [n] in memory order: the data itself.
  // Undefined where there is none of that kind. Not collective.
  at::Tensor local(int parameter, const std::string& kind, const ShardedOptimizer* optimizer,
                   Reducer& reducer);
  // Overwrites those with `value` [n]. The parameter follows its master; where it is whole that is
  // collective. False where there is none.
  bool set_local(int parameter, const std::string& kind, const at::Tensor& value,
                 const ShardedOptimizer* optimizer, Reducer& reducer);
  // The parameters of the unit's sharded segments become whole, ordinary tensors.
  void hand_back(params::Unit& unit);

 private:
  params::Range shard_of(const params::Segment& segment) const {
    return segment.layout.shard_of(channels_.gather->rank());
  }
  // What the optimizer updates on this rank.
  params::Range update_range(const params::Segment& segment) const {
    return plan_.shard_optimizer ? shard_of(segment) : params::Range{0, segment.layout.numel};
  }
  at::Tensor cut(const at::Tensor& flat, const params::Parameter& parameter) const;

  const params::Registry& registry_;
  comm::ShardChannels channels_;
  ZeroPlan plan_;
};

}  // namespace shardwise::zero
