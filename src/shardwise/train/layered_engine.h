// Trains a layered model without Python: the C++ counterpart of Python's shardwise.initialize.
//
//   train::LayeredEngine engine(models::make_model(shape, /*seed=*/0), config, rank);
//   for (...) {
//     engine.backward(engine.loss(tokens));   // [micro-batch, seq] int64
//     engine.step();
//   }
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/config/config.h"
#include "shardwise/models/model.h"
#include "shardwise/optim/configured_rule.h"
#include "shardwise/optim/schedule.h"
#include "shardwise/train/engine.h"
#include "shardwise/train/rank.h"

namespace shardwise::train {

// Not thread-safe. Every rank calls the same functions in the same order: forward passes, steps and
// weights() communicate.
class LayeredEngine {
 public:
  // Takes over the model's parameters, on the rank's device and in the configuration's dtype.
  // Collective; all ranks start with the first rank's weights. Throws UsageError where ranks differ
  // in configuration, shape or `settings`: what else must be the same, "name = value" lines.
  LayeredEngine(models::Model model, const config::Resolved& config, const Rank& rank,
                const std::string& settings = "");

  // Switches dropout; training at first.
  void set_training(bool training) { model_.set_training(training); }
  bool training() const { return model_.training(); }

  // Mean cross-entropy (nats) of predicting each next token of a document, on any device; with
  // `targets` [batch, seq] int64 of predicting those, -100: none. fp32 scalar.
  at::Tensor loss(const models::Tokens& tokens);
  at::Tensor loss(const models::Tokens& tokens, const at::Tensor& targets);
  // [batch, seq, vocabulary] in the training dtype.
  at::Tensor logits(const models::Tokens& tokens);

  // Backward of a loss; divides by the accumulation steps and scales in fp16. `tokens`: how many
  // the loss is the mean of, where shardwise.token_weighted_loss asks for it. After an error the
  // gradients of the window are dropped.
  void backward(const at::Tensor& loss, const at::Tensor& tokens = {});
  // Ends a micro-batch. At the end of the accumulation window updates the weights and returns true.
  bool step();
  // Updates with the mean over all ranks' micro-batches since the last update, if there are any.
  // Collective.
  bool flush_accumulation();

  // Learning rate of the last step (with Muon of the matrices); 0 before the first.
  double last_lr() const { return last_lr_; }
  // What the last step decided (norm, loss scale, whether it was applied); waits for it on a GPU.
  // Null before the first.
  const kernels::BoundaryResult* last_result() { return core_->last_result(); }
  std::int64_t global_steps() const { return global_steps_; }  // skipped ones included
  std::int64_t skipped_steps();

  // Σ values over the ranks, in place; [n], any floating dtype, on the rank's device.
  void sum_over_ranks(const at::Tensor& values);
  // Returns when all ranks have come here and this rank's device has finished. Call it before a
  // program ends well: leaving ends the group, and with it what other ranks still wait for.
  void wait_for_ranks();
  // Full weights in the training dtype on the CPU of rank 0, nothing elsewhere. Collective; holds
  // one whole unit at a time on other ranks.
  std::vector<models::NamedParameter> weights();

  const models::Model& model() const { return model_; }
  const Rank& rank() const { return rank_; }
  Engine& core() { return *core_; }

 private:
  models::AnnouncedFactor announced_factor(const models::Tokens& tokens) const;
  void update(std::int64_t partial_of = 0);
  void settle();
  // Of each parameter group: one, or with Muon the matrices and then the rest.
  std::vector<optim::GroupValues> scheduled_values();
  // Runs `work`; if it throws, the gradients of the present accumulation window are dropped.
  template <typename Work>
  void dropping_the_window_on_failure(const Work& work);

  models::Model model_;
  config::Config config_;
  Rank rank_;
  optim::ConfiguredRule rule_;
  std::unique_ptr<optim::Schedule> schedule_;  // null: constant
  std::unique_ptr<Engine> core_;
  std::int64_t global_steps_ = 0;
  std::int64_t skipped_steps_ = 0;
  double last_lr_ = 0;
  bool unsettled_ = false;  // the outcome of the last step was not counted yet
};

// Without dropout and gradients for its lifetime.
class EvaluationMode {
 public:
  explicit EvaluationMode(LayeredEngine& engine) : engine_(engine), before_(engine.training()) {
    engine_.set_training(false);
  }
  ~EvaluationMode() { engine_.set_training(before_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  LayeredEngine& engine_;
  bool before_;
  at::NoGradGuard no_grad_;
};

}  // namespace shardwise::train
