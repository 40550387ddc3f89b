// Master weights and optimizer states as shards, and the fused update over them.
#pragma once

#include <functional>
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

struct ShardedOptimizerOptions {
  optim::RuleOptions rule;
  ZeroPlan plan;
  int rank = 0;
  // Masters and states rest in host memory, where the CPU kernels update them.
  bool offload = false;
  // 16-bit parameters are their own masters, and whether states are in their dtype too.
  bool sixteen_bit_masters = false;
  bool sixteen_bit_states = false;
  comm::Channel* channel = nullptr;  // for the norms of LAMB and the matrices of Muon
};

// This rank's part of one parameter's master: flat, or at stage 0 the whole in its own shape.
struct MasterPiece {
  int parameter = -1;  // index in the registry
  at::Tensor data;
};

// A rule outside of this library. Gets the gradients of the pieces in their order, fp32 and ready
// to apply, undefined where the parameter does not move; changes the pieces in place.
using OutsideUpdate = std::function<void(const std::vector<at::Tensor>& gradients)>;

// Each rank updates its slice of every trainable segment (stage 0: all of it) and, where parameters
// are whole but slices were updated, gathers the new ones. One kernel launch serves all segments.
class ShardedOptimizer {
 public:
  ShardedOptimizer(const params::Registry& registry, const Reducer& reducer,
                   const ShardedOptimizerOptions& options);

  // This rank's slices of parameters that are in a group, for the norm. Valid on the device of the
  // parameters.
  const kernels::ChunkTable& norm_table();
  // Of the norm's table, once all parameters are in groups.
  std::int64_t most_norm_chunks() const { return own_.most_chunks; }

  // Hyperparameters of the coming update. Throws UsageError and changes nothing if they do not fit.
  void set_groups(const std::vector<optim::GroupValues>& groups);
  // Trainable segments that Registry::unfreeze has made, and the reducer knows, get masters and
  // states. Nothing of other segments changes.
  void join(const std::vector<params::Segment*>& made);
  // Another parameter group for parameters; their states stay.
  void assign_group(const std::vector<int>& parameters, int group);
  // Throws UsageError if somebody changed parameters with masters of their own in place since the
  // last update: their masters would undo it.
  void check_unchanged() const;
  // Applies the boundary's decision. The host waits for it if the rule or the states are elsewhere.
  // Kernels update the units of `first` and all that stay gathered before the others, and the
  // result is the point between; null where that is not so.
  std::shared_ptr<device::Event> update(const kernels::Place& place, Boundary& boundary,
                                        const std::vector<int>& first);
  // Stages 1–2 and units that stay gathered: everybody gets the new parameters, which are there
  // from `ready` on; see Transport::all_gather.
  void gather_updated(comm::Channel& channel, OrderHash& hash, device::Event* ready);

  // Pieces with elements, in the order of the parameters; for an outside rule.
  std::vector<MasterPiece> pieces() const;
  void set_outside_update(OutsideUpdate update) { outside_ = std::move(update); }

  // The slice [update range] of a trainable segment that is updated: the parameter itself, without
  // offload, in fp32 training and with 16-bit masters; else fp32 values of its own.
  const params::ShardHandle& master(const params::Segment& segment) const;
  // Whether the master is memory of its own.
  bool has_own_master(const params::Segment& segment) const;
  // State `name` of a segment; an undefined handle if the rule has no such state.
  params::ShardHandle state(const params::Segment& segment, const std::string& name) const;
  // This rank's pieces of masters and states.
  params::StateView state_view() const;
  // Of masters with memory of their own, of states, and of buffers between host and device.
  std::int64_t bytes(params::Tier tier) const;

 private:
  struct Shard {
    params::ShardHandle parameter;  // update range in the training dtype
    params::ShardHandle master;
    std::vector<params::ShardHandle> states;
    params::Range range;  // within the segment
    // Offload from a GPU: pinned memory for the gradient and for a 16-bit copy of the master.
    params::ShardHandle gradient_on_host, parameter_on_host;
  };
  // Chunk descriptors and segment pointers in memory of the place that works on them.
  struct Table {
    DeviceArray chunks, pointers;
    std::vector<params::Range> chunks_of;  // by segment id
    std::vector<kernels::ShardPointers> uploaded;
    std::int64_t chunk_count = 0;
    std::int64_t most_chunks = 0;  // with those of parameters that are in no group yet
    kernels::ChunkTable view;
    bool for_norm = true;
    at::Device device = at::kCPU;
  };

  void make_shard(params::Segment& segment);
  void offload(Shard& shard);
  void make_tables();
  Table make_table(bool for_norm) const;
  void refresh(Table& table) const;
  bool has_update_table() const {
    return options_.offload || !options_.plan.shard_optimizer || moves_matrices();
  }
  bool moves_matrices() const { return options_.rule.name == optim::kMuonRule; }
  void check_matrices(const std::vector<optim::GroupValues>& groups) const;
  std::vector<std::string> state_names(const params::Segment& segment) const;
  at::Tensor gradient(const params::Segment& segment) const;
  at::Tensor piece(const at::Tensor& flat, const params::ParameterAddress& address) const;
  std::vector<at::Tensor> piece_gradients(const Boundary& boundary) const;
  void run_outside(Boundary& boundary);
  void run_lamb(Boundary& boundary);
  void run_muon(Boundary& boundary);
  void run_on_host(Boundary& boundary);
  void write_parameters(bool matrices = false);
  std::shared_ptr<device::Event> run_in_two(
      const Table& table, const std::vector<int>& first,
      const std::function<void(const kernels::ChunkTable&)>& run) const;
  void note_update();

  const params::Registry& registry_;
  const Reducer& reducer_;
  ShardedOptimizerOptions options_;
  std::unique_ptr<optim::UpdateRule> rule_;
  OutsideUpdate outside_;
  std::vector<Shard> shards_;  // by segment id; empty for frozen segments
  Table own_;                  // this rank's slices on the device
  Table update_;               // what this rank updates, where that is not the same
};

}  // namespace shardwise::zero
