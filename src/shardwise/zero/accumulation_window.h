// The accumulation window: the micro-batches whose gradients make one step. Counts them, knows
// where the window ends, and by how much the gradients of each backward count. Both fronts use the
// engine's window; nothing else counts micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace shardwise::zero {

// Who scaled the loss of a backward that brings gradients.
enum class LossScaledBy {
  kEngine,       // this engine: divided by the micro-batches, and multiplied by the loss scale
  kOtherEngine,  // another engine of the process, whose loss depends on this engine's parameters
  kUser,         // nobody but the user, with Engine::scale or not: loss.backward()
};

struct AccumulationOptions {
  std::int64_t size = 1;        // micro-batches a window
  bool loss_scaling = false;    // gradients have to carry the loss scale (fp16)
  bool token_weighted = false;  // gradients have to be sums over tokens
};

// Not thread-safe.
class AccumulationWindow {
 public:
  explicit AccumulationWindow(const AccumulationOptions& options) : options_(options) {}

  std::int64_t size() const { return options_.size; }
  bool token_weighted() const { return options_.token_weighted; }
  // Throws UsageError inside a window.
  void resize(std::int64_t size);
  // From now on the micro-batch under way ends the window, or does not, whatever the count says;
  // nullopt: the count decides again.
  void force_boundary(std::optional<bool> is_boundary) { forced_ = is_boundary; }

  // Whether the micro-batch under way is the last of its window.
  bool at_boundary() const { return forced_.value_or(held_ + 1 >= options_.size); }
  // Micro-batches whose gradients the window holds, the one under way too.
  std::int64_t with_gradients() const { return with_gradients_ + (had_backward_ ? 1 : 0); }
  // Whether no micro-batch of the window has brought gradients.
  bool empty() const { return with_gradients() == 0; }
  // Micro-batches that ended in this window.
  std::int64_t held() const { return held_; }
  // All micro-batches that ended, less those of windows that were dropped.
  std::int64_t micro_steps() const { return micro_steps_; }

  // A backward begins. Returns what its gradients have to be multiplied with. Throws UsageError
  // when they lack the loss scale or the weights of tokens.
  double begin_backward(LossScaledBy scaled_by);
  // The user multiplied a loss with the loss scale.
  void note_scaled_by_hand() { scaled_by_hand_ = true; }
  // Whether a backward began since the last micro-batch ended.
  bool had_backward() const { return had_backward_; }
  // Whether a gradient may have come from a loss with another engine's loss scale.
  bool has_foreign_scale() const { return foreign_scale_; }

  // The loss of the coming backward is a mean over `weight` of something, a scalar tensor such as a
  // number of tokens; its gradients have to be multiplied with it. Counts once for all losses of a
  // micro-batch; throws UsageError (and waits for a GPU) where a later one names another.
  void add_weight(const at::Tensor& weight);
  // fp64 scalar: the sum over the window; undefined when nothing was added.
  const at::Tensor& weight() const { return weight_; }

  // Ends the micro-batch under way, in mid-window.
  void end_micro_batch();
  // The window's gradients were used. Ends the micro-batch under way too if `with_micro_batch`.
  void close(bool with_micro_batch = true);
  // The window's gradients were thrown away: its micro-batches do not count.
  void drop();
  // The gradients were cleared on the user's wish; micro-batches keep counting.
  void forget_gradients();
  // What turns the mean over `ranks` of their sums over micro-batches, each divided by size(), into
  // the mean over the `of_all` > 0 micro-batches that the ranks hold together.
  double partial_factor(std::int64_t of_all, int ranks) const;

 private:
  void end_losses();

  AccumulationOptions options_;
  std::optional<bool> forced_;
  std::int64_t held_ = 0;
  std::int64_t with_gradients_ = 0;  // of the held ones, those that zero_grad() did not hit
  std::int64_t micro_steps_ = 0;
  at::Tensor weight_;
  at::Tensor micro_weight_;  // of the micro-batch under way
  bool had_backward_ = false;
  bool scaled_by_hand_ = false;
  bool foreign_scale_ = false;
};

}  // namespace shardwise::zero
