// The training engine: wires units, gatherer, reducer, optimizer and boundary together. It owns no
// algorithm.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "shardwise/comm/mesh.h"
#include "shardwise/config/config.h"
#include "shardwise/diagnostics/trace_recorder.h"
#include "shardwise/optim/update_rule.h"
#include "shardwise/params/registry.h"
#include "shardwise/zero/accumulation_window.h"
#include "shardwise/zero/boundary.h"
#include "shardwise/zero/tensor_access.h"
#include "shardwise/zero/unit_driver.h"

namespace shardwise::train {

struct EngineOptions {
  config::Config config;
  at::Device device = at::kCPU;
  optim::RuleOptions rule;  // without a name: trains nothing (evaluation, gradients only)
  // What must be the same on all ranks besides the parameters, one setting a line.
  std::string settings;
};

// Bytes held by this rank in one memory tier.
struct MemoryReport {
  std::int64_t parameters = 0;           // in the training dtype: whole or shards
  std::int64_t gradients = 0;            // accumulators
  std::int64_t optimizer = 0;            // masters with memory of their own, and states
  std::int64_t ring = 0;                 // buffers for gathered parameters
  std::int64_t gradients_in_flight = 0;  // buffers of gradients being reduced
};

class Engine {
 public:
  // Takes over the parameters of `units`. Collective.
  Engine(const EngineOptions& options, comm::ShardChannels channels,
         std::vector<params::UnitSpec> units);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  zero::UnitDriver& driver() { return *driver_; }
  const params::Registry& registry() const { return registry_; }

  // The micro-batches of the step under way.
  zero::AccumulationWindow& window() { return window_; }
  // Backward of a scalar loss, which becomes loss ÷ window size × loss scale (`divide` false:
  // without the division). With shardwise.token_weighted_loss the loss is the mean over `tokens`, a
  // scalar of any dtype on any device, and counts by them instead. No synchronisation.
  void backward(const at::Tensor& loss, bool retain_graph = false, bool divide = true,
                const at::Tensor& tokens = {});
  // loss × loss scale, differentiable, for a backward that the user runs.
  at::Tensor scale(const at::Tensor& loss);
  // fp32 scalar on the device: the scale of the coming backward; undefined where none acts.
  at::Tensor loss_scale() const;
  // Ends a micro-batch in mid-window. Throws UsageError when its gradients are incomplete.
  void end_micro_batch();
  // Micro-batches whose gradients the ranks hold together since the last step. Collective.
  std::int64_t held_by_all();
  // The end of an accumulation window: reduces, decides, updates, clears the gradients.
  // Parameters that were frozen and require grad by now join the training, alike on all ranks.
  // `partial_of` > 0: of a window that is not full, by held_by_all(); the mean over those counts.
  // Throws UsageError when no gradient came, or when ranks were given different `groups`;
  // CommunicationError when they did different things.
  void step(const std::vector<optim::GroupValues>& groups, std::int64_t partial_of = 0);
  // What the last step decided. Waits for it where it runs on a GPU. Null before the first step.
  const kernels::BoundaryResult* last_result();
  void zero_grad();
  // Another window size, and the dtype of accumulation that goes with it. Between windows only.
  void set_accumulation(std::int64_t size, at::ScalarType dtype);

  // Single tensors, to read and to set.
  zero::TensorAccess& tensors() { return tensors_; }
  // A whole tensor from the pieces that the ranks hold of a state of an outside rule, in the shape
  // of ShardedOptimizer::pieces; undefined if no rank has one. Collective.
  at::Tensor assemble(int parameter, const at::Tensor& piece);

  // Null without a rule.
  zero::ShardedOptimizer* optimizer() const { return optimizer_.get(); }
  // Parameters join a parameter group; those that were in none count their steps anew, others go
  // on. Frozen ones move once they require grad. The next step fails if other ranks do not do the
  // same.
  void assign_group(const std::vector<int>& parameters, int group);
  // Rank 0's values for everybody; collective.
  void broadcast(const at::Tensor& tensor, const std::string& what);

  MemoryReport memory_report(params::Tier tier) const;
  bool communication_failed() const;
  std::vector<comm::Channel*> channels() const { return channels_.list(); }
  comm::Traffic traffic(comm::Collective collective) const;
  void reset_traffic();
  // Makes the parameters ordinary tensors again; collective if `whole` (sharded ones are gathered),
  // else parameters of sharded units throw when read. The engine is of no use afterwards.
  void dismantle(bool whole);

 private:
  struct LastStep {
    std::int64_t number = 0;  // of steps so far, skipped ones included
    bool unchecked = false;   // its errors have not been raised yet
    int non_finite_in_a_row = 0;
    std::vector<optim::GroupValues> groups;
  };
  kernels::BoundaryRule boundary_rule() const;
  void note_whole_parameters() const;
  void check_gradients_are_sound() const;
  void exchange_records(const kernels::Place& place);
  void admit(const std::set<int>& newcomers);
  at::Tensor token_factor();
  at::Tensor gradient_factor();
  double ranks_in_sum() const;
  // What has to be equal on all ranks besides the order of work: hashed behind that at each step,
  // told one a line when the hashes differ. Rounded to fp32, so that the last digit of a schedule's
  // cosine, in which machines may differ, does not count.
  std::uint64_t hash_settings() const;
  std::string describe_settings() const;
  void check_last_step();
  void report_non_finite(const kernels::BoundaryResult& result);

  EngineOptions options_;
  comm::ShardChannels channels_;
  comm::Mesh mesh_;
  zero::ZeroPlan plan_;
  zero::OrderHash order_hash_;
  params::Registry registry_;
  zero::Gatherer gatherer_;
  zero::Reducer reducer_;
  std::unique_ptr<zero::ShardedOptimizer> optimizer_;
  std::unique_ptr<zero::Boundary> boundary_;
  zero::AccumulationWindow window_;
  std::shared_ptr<zero::UnitDriver> driver_;
  zero::TensorAccess tensors_;
  LastStep last_step_;
  diagnostics::TraceRecorder trace_;
};

}  // namespace shardwise::train
