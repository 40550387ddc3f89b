#include "shardwise/zero/unit_driver.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "shardwise/base/check.h"

namespace shardwise::zero {

namespace {

// Of a backward whose loss an engine has scaled: which engine. Engines do not know each other, but
// one loss may depend on the parameters of several. torch hands this to the threads that carry the
// backward out, and to backwards inside of it; other threads' backwards do not see it.
struct ScaledLoss : public c10::DebugInfoBase {
  explicit ScaledLoss(const UnitDriver* scaled_by) : by(scaled_by) {}
  const UnitDriver* by;
};

// Beside the kinds that torch names, which it counts up from 0.
constexpr auto kScaledLoss = static_cast<c10::DebugInfoKind>(0xD5);

}  // namespace

ScaledBackward::ScaledBackward(UnitDriver& driver)
    : guard_(kScaledLoss, std::make_shared<ScaledLoss>(&driver)) {
  driver.watch_unfrozen();
  driver.window_.begin_backward(LossScaledBy::kEngine);
}

// Adds the host time of a scope to one direction, less what its channels' collectives took.
class UnitDriver::Timer {
 public:
  Timer(const UnitDriver& driver, double* seconds)
      : driver_(driver), seconds_(seconds), collectives_(collective_seconds()) {}
  ~Timer() {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    *seconds_ += elapsed.count() - (collective_seconds() - collectives_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  double collective_seconds() const {
    return driver_.channels_.gather->host_seconds() + driver_.channels_.reduce->host_seconds();
  }

  const UnitDriver& driver_;
  double* seconds_;
  double collectives_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

UnitDriver::UnitDriver(const params::Registry& registry, Gatherer& gatherer, Reducer& reducer,
                       const ZeroPlan& plan, const comm::ShardChannels& channels,
                       AccumulationWindow& window)
    : registry_(registry),
      gatherer_(gatherer),
      reducer_(reducer),
      plan_(plan),
      channels_(channels),
      window_(window),
      pending_(registry.units().size(), 0),
      done_(registry.units().size(), 0),
      marked_(registry.units().size()) {}

void UnitDriver::install() {
  for (std::size_t i = 0; i < registry_.parameters().size(); ++i) {
    const params::Parameter& parameter = registry_.parameters()[i].parameter();
    const int index = static_cast<int>(i);
    if (parameter.trainable < 0) {
      frozen_.push_back({index});
    } else {
      accumulators_.push_back(install_gradient_hook(parameter.tensor, index, weak_from_this()));
    }
  }
}

void UnitDriver::watch_unfrozen() {
  std::erase_if(frozen_, [this](Frozen& frozen) {
    const params::Parameter& parameter = registry_.parameters()[frozen.parameter].parameter();
    if (parameter.trainable >= 0) {
      return true;
    }
    if (parameter.tensor.requires_grad()) {
      if (!frozen.captured) {
        SW_USER_CHECK(UsageError, !parameter.tensor.grad().defined(), "parameter ", parameter.name,
                      " was frozen at initialize(), and has got a gradient since it was unfrozen "
                      "that the engine did not see: call engine.zero_grad(), and run the model as "
                      "engine(...) and not as engine.module(...)");
        accumulators_.push_back(
            install_gradient_hook(parameter.tensor, frozen.parameter, weak_from_this()));
        frozen.captured = true;
      }
      unfrozen_.insert(frozen.parameter);
    }
    return false;
  });
}

void UnitDriver::uninstall() {
  accumulators_.clear();
  frozen_.clear();
}

void UnitDriver::begin_pass() {
  if (inside_backward()) {
    return;  // a checkpointed model is being recomputed
  }
  watch_.interrupted = interrupted();
  watch_.task = kNoTask;
  watch_unfrozen();
  gatherer_.begin_pass(at::GradMode::is_enabled());
}

std::vector<at::Tensor> UnitDriver::before_forward(int unit,
                                                   const std::vector<at::Tensor>& inputs) {
  const Timer timer(*this, &times_.forward_seconds);
  ++times_.forward_calls;
  gatherer_.acquire(unit);
  if (!plan_.shard_gradients || inputs.empty() || !at::GradMode::is_enabled()) {
    return {};
  }
  std::vector<at::Tensor> marked =
      mark_inputs(inputs, unit, /*counted=*/!inside_backward(), weak_from_this());
  marked_[unit] = marked;
  return marked;
}

void UnitDriver::after_forward(int unit, const std::vector<at::Tensor>& outputs) {
  const Timer timer(*this, &times_.forward_seconds);
  if (plan_.shard_gradients && at::GradMode::is_enabled()) {
    check_not_changed_in_place(unit);
    mark_outputs(outputs, unit, weak_from_this());
  }
  if (!inside_backward()) {
    gatherer_.release(unit);
  }
}

// The caller's own tensor shares memory with the marked one but not its history: a change in place
// would be missing from the caller's graph.
void UnitDriver::check_not_changed_in_place(int unit) {
  const std::vector<at::Tensor> marked = std::move(marked_[unit]);
  marked_[unit].clear();
  for (const at::Tensor& input : marked) {
    const auto node = input.grad_fn();
    SW_USER_CHECK(UsageError, !node || node->name() == "ShardwiseUnitBackward", "unit ",
                  registry_.unit(unit).name,
                  " changed its input in place; with ZeRO stages 2 and 3 its caller would get "
                  "wrong gradients. Use the out-of-place form (inplace=False) for the first "
                  "operation of the block.");
  }
}

void UnitDriver::watch_backward_end() {
  // A backward inside of backward (a reentrant checkpoint) belongs to the outer one. Without unit
  // hooks it is a task like any other.
  const int task = backward_task();
  if (watch_.task != kNoTask && (plan_.shard_gradients || watch_.task == task)) {
    return;
  }
  watch_.task = task;
  watch_.factor.reset();
  watch_.delays = watch_.reached = watch_.owes_prefetch = false;
  device::set_launch_waiter(weak_from_this());
  std::fill(done_.begin(), done_.end(), 0);
  next_to_reduce_ = static_cast<int>(done_.size()) - 2;
  on_backward_end([weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->finish_backward();
    }
  });
}

void UnitDriver::before_backward(int unit) {
  const Timer timer(*this, &times_.backward_seconds);
  watch_backward_end();
  if (at::GradMode::is_enabled()) {
    gatherer_.keep_until_next_pass();
  }
  if (registry_.unit(unit).backward_reads || at::GradMode::is_enabled()) {
    if (gatherer_.must_gather(unit)) {
      reducer_.launch();
    }
    gatherer_.acquire(unit, /*ahead=*/!watch_.delays);
    watch_.owes_prefetch = watch_.delays;
  }
}

void UnitDriver::after_backward(int unit) {
  const Timer timer(*this, &times_.backward_seconds);
  ++times_.backward_calls;
  watch_backward_end();
  if (!watch_.reached) {
    launch_delayed();
  }
  watch_.delays = std::exchange(watch_.reached, false);
  if (pending_[unit] <= 0) {
    done_[unit] = 1;
    reduce_in_order(/*all=*/false);
  }
  if (!watch_.delays) {
    reducer_.launch();
  }
  gatherer_.release(unit);
}

void UnitDriver::launch_point() {
  if (watch_.task == kNoTask) {
    return;
  }
  const Timer timer(*this, &times_.backward_seconds);
  watch_.reached = true;
  launch_delayed();
}

// In the order in which ranks that delay nothing launch the same.
void UnitDriver::launch_delayed() {
  reducer_.launch();
  if (std::exchange(watch_.owes_prefetch, false)) {
    gatherer_.prefetch();
  }
}

// Units are reduced in one order on all ranks, whatever each of them ran: the blocks from last to
// first, then the last unit, which is the root and takes part from the first moment to the last.
void UnitDriver::reduce_in_order(bool all) {
  const int root = static_cast<int>(done_.size()) - 1;
  while (next_to_reduce_ >= 0 && (all || done_[next_to_reduce_])) {
    reducer_.reduce(registry_.unit(next_to_reduce_--));
  }
  if (all && root >= 0) {
    reducer_.reduce(registry_.unit(root));
  }
}

void UnitDriver::gradient(int parameter, const at::Tensor& gradient) {
  const Timer timer(*this, &times_.backward_seconds);
  watch_backward_end();
  const double factor = gradient_factor();
  reducer_.write(parameter, factor == 1.0 ? gradient : gradient * factor);
}

bool UnitDriver::product(const std::vector<int>& parameters, const params::Product& product) {
  const Timer timer(*this, &times_.backward_seconds);
  watch_backward_end();
  return gradient_factor() == 1.0 && reducer_.write_product(parameters, product);
}

double UnitDriver::gradient_factor() {
  if (!watch_.factor) {
    const auto* scaled = static_cast<ScaledLoss*>(c10::ThreadLocalDebugInfo::get(kScaledLoss));
    watch_.factor = scaled != nullptr && scaled->by == this
                        ? 1.0
                        : window_.begin_backward(scaled != nullptr ? LossScaledBy::kOtherEngine
                                                                   : LossScaledBy::kUser);
  }
  return *watch_.factor;
}

void UnitDriver::forget_interruption() {
  watch_.interrupted = false;
  watch_.task = kNoTask;
}

void UnitDriver::finish_backward() {
  const Timer timer(*this, &times_.backward_seconds);
  watch_.task = kNoTask;
  if (!plan_.shard_gradients) {
    return;
  }
  reduce_in_order(/*all=*/true);
  for (const auto& unit : registry_.units()) {
    if (reducer_.holds_unreduced(*unit)) {  // gradients that came after the unit was done
      reducer_.reduce(*unit);
    }
  }
  reducer_.launch();
  for (std::vector<at::Tensor>& marked : marked_) {
    marked.clear();
  }
  gatherer_.release_leftovers();
}

}  // namespace shardwise::zero
