// Single parameters of an engine for its user: whole, or this rank's part; to read and to set.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/comm/mesh.h"
#include "shardwise/zero/full_state.h"
#include "shardwise/zero/gatherer.h"
#include "shardwise/zero/open_units.h"
#include "shardwise/zero/reducer.h"
#include "shardwise/zero/sharded_optimizer.h"

namespace shardwise::zero {

// The parts of an engine that hold values; they outlive the access.
struct Holders {
  const params::Registry& registry;
  Gatherer& gatherer;
  Reducer& reducer;
  const std::unique_ptr<ShardedOptimizer>& optimizer;  // may be null, or be made later
};

// Kinds of tensors: "parameter", "master", "gradient", or a state of the update rule. Gradients are
// the user's: averaged, without the loss scale. Collective, but for what says otherwise.
class TensorAccess {
 public:
  // What gradients held here are to be divided by to be the user's; undefined: nothing.
  using GradientFactor = std::function<at::Tensor()>;

  TensorAccess(const Holders& holders, const comm::ShardChannels& channels, ZeroPlan plan,
               GradientFactor factor);

  // A copy in the parameter's shape; masters and states in fp32. Undefined where there is none of
  // that kind.
  at::Tensor full(int parameter, const std::string& kind);
  // Overwrites a "master" (and the parameter with it), the "gradient" or a state with a tensor of
  // the parameter's shape, alike on every rank. False where there is none of that kind.
  bool set_full(int parameter, const std::string& kind, const at::Tensor& value);
  void set_parameter(int parameter, const at::Tensor& value);

  // A copy of this rank's elements, [n] in memory order, masters and states in fp32; undefined
  // where there is none of that kind. Not collective, but for gradients where losses count by their
  // tokens, and where replicas (hybrid sharding) take the mean of theirs.
  at::Tensor local(int parameter, const std::string& kind);
  // The parameter follows its master; where it is whole that is collective. Gradients as above.
  bool set_local(int parameter, const std::string& kind, const at::Tensor& value);

  // One unit's parameters are readable until close(). See OpenUnits.
  void open(int unit, int modifier = kReadOnly) { open_units_.open(unit, modifier); }
  void close(int unit, bool discard = false) {
    open_units_.close(unit, discard, holders_.optimizer.get());
  }
  // How often each unit ran in the present forward pass, or the last one. Not collective.
  const std::vector<int>& unit_calls() const { return holders_.gatherer.calls(); }

  FullState& full_state() { return full_state_; }

 private:
  void check_none_open() const;
  at::Tensor held(const std::string& kind, const at::Tensor& value) const;

  Holders holders_;
  GradientFactor factor_;
  FullState full_state_;
  OpenUnits open_units_;
};

}  // namespace shardwise::zero
