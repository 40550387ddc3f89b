// Drives gatherer and reducer from the events of forward and backward.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "shardwise/comm/mesh.h"
#include "shardwise/params/registry.h"
#include "shardwise/params/unit_events.h"
#include "shardwise/zero/accumulation_window.h"
#include "shardwise/zero/autograd_hooks.h"
#include "shardwise/zero/gatherer.h"
#include "shardwise/zero/plan.h"
#include "shardwise/zero/reducer.h"

namespace shardwise::zero {

// Host seconds of the engine's own work, without the collective calls, by direction.
struct HostTimes {
  double forward_seconds = 0;
  double backward_seconds = 0;
  std::int64_t forward_calls = 0;   // one a unit and forward
  std::int64_t backward_calls = 0;  // one a unit and backward
};

// Front ends report forward events (params::UnitEvents); the backward events arrive through
// autograd. One thread at a time.
class UnitDriver : public params::UnitEvents,
                   public BackwardEvents,
                   public std::enable_shared_from_this<UnitDriver> {
 public:
  // The collaborators outlive the driver. Call install() once it is held by a shared_ptr.
  UnitDriver(const params::Registry& registry, Gatherer& gatherer, Reducer& reducer,
             const ZeroPlan& plan, const comm::ShardChannels& channels, AccumulationWindow& window);
  void install();
  // Captures gradients of frozen parameters that require grad by now. Called before every pass,
  // backward and step of the engine. Throws UsageError where such a parameter has got a gradient
  // that was not captured.
  void watch_unfrozen();
  // Frozen parameters, by index, that were seen to require grad since forget_unfrozen().
  const std::set<int>& unfrozen() const { return unfrozen_; }
  void forget_unfrozen() { unfrozen_.clear(); }

  void begin_pass() override;
  std::vector<at::Tensor> before_forward(int unit, const std::vector<at::Tensor>& inputs) override;
  void after_forward(int unit, const std::vector<at::Tensor>& outputs) override;

  void before_backward(int unit) override;
  void after_backward(int unit) override;
  void gradient(int parameter, const at::Tensor& gradient) override;
  bool product(const std::vector<int>& parameters, const params::Product& product) override;
  void add_pending(int unit, int change) override { pending_[unit] += change; }
  void launch_point() override;

  // Whether a backward ended by an error: its gradients are incomplete.
  bool interrupted() const { return watch_.interrupted || watch_.task != kNoTask; }
  // Its gradients were cleared.
  void forget_interruption();

  const HostTimes& host_times() const { return times_; }
  // Ends gradient capture: parameters behave as torch made them.
  void uninstall();

 private:
  friend class ScaledBackward;
  static constexpr int kNoTask = -1;
  class Timer;
  struct Watch {
    int task = kNoTask;            // the backward whose end is awaited
    bool interrupted = false;      // one ended by an error, and its gradients are still there
    std::optional<double> factor;  // of its gradients, once one has come
    // Its collectives are launched at launch points while its units have them: whether the unit
    // before had one, and whether this one has had one.
    bool delays = false;
    bool reached = false;
    bool owes_prefetch = false;
  };
  double gradient_factor();
  void watch_backward_end();
  void launch_delayed();
  void reduce_in_order(bool all);
  void finish_backward();
  void check_not_changed_in_place(int unit);

  const params::Registry& registry_;
  Gatherer& gatherer_;
  Reducer& reducer_;
  ZeroPlan plan_;
  comm::ShardChannels channels_;
  AccumulationWindow& window_;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  struct Frozen {
    int parameter;
    bool captured = false;  // its gradients, since it required grad for the first time
  };
  std::vector<Frozen> frozen_;  // until they have joined
  std::set<int> unfrozen_;
  std::vector<int> pending_;        // by unit
  std::vector<std::uint8_t> done_;  // by unit, in the present backward
  int next_to_reduce_ = 0;
  std::vector<std::vector<at::Tensor>> marked_;  // by unit: inputs handed out, until after_forward
  Watch watch_;
  HostTimes times_;
};

// While it lives, a backward of this thread that reaches the driver's parameters is of a loss that
// its engine has scaled; one that reaches other engines' parameters has been scaled by another.
class ScaledBackward {
 public:
  explicit ScaledBackward(UnitDriver& driver);
  ScaledBackward(const ScaledBackward&) = delete;
  ScaledBackward& operator=(const ScaledBackward&) = delete;

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace shardwise::zero
