// Carries out a job file: model, data, training loop, evaluation, weights at the end.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "shardwise/config/job.h"
#include "shardwise/data/corpus.h"
#include "shardwise/data/token_loader.h"
#include "shardwise/data/tokenizer.h"
#include "shardwise/device/stream.h"
#include "shardwise/monitor/monitor.h"
#include "shardwise/train/layered_engine.h"
#include "shardwise/train/stop_signal.h"

namespace shardwise::train {

// One a rank; all ranks construct and run it together.
class Trainer {
 public:
  // Builds or loads the model and opens the data. Throws ConfigError (the job's keys), DataError or
  // IoError (files) with what to change. Collective.
  Trainer(const config::Job& job, const Rank& rank);

  // Trains all steps and tells `sink`, from begin to end; on rank 0 weights are then in
  // <training.output>/model. Throws UsageError between two steps when `stop` has received a signal.
  // Collective.
  void run(monitor::Sink& sink, const StopSignal& stop);

 private:
  using Clock = std::chrono::steady_clock;
  // A step whose numbers have not been read yet: reading them waits for a GPU.
  struct PendingStep {
    std::int64_t step;
    at::Tensor loss;  // fp32 scalar on the host: the mean that the step lowers, over all ranks
    device::Event arrived;
    double lr;
  };

  monitor::RunInfo describe() const;
  static void check_not_stopped(const StopSignal& stop, std::int64_t step);
  void train(monitor::Sink& sink, const StopSignal& stop);
  void train_step(std::int64_t step, monitor::Sink& sink);
  void report_pending(monitor::Sink& sink);
  void evaluate_now(std::int64_t step, monitor::Sink& sink);
  // Throws DataError where the last losses are not finite.
  void check_converged() const;
  void write_sample(monitor::Sink& sink);
  void save_weights(monitor::Sink& sink);

  config::Job job_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  data::Split corpus_;
  std::vector<std::int64_t> prompt_;  // tokens of training.sample_prompt
  std::unique_ptr<data::TokenLoader> loader_;
  std::unique_ptr<LayeredEngine> engine_;
  std::optional<PendingStep> pending_;
  Clock::time_point begin_, previous_;
  double last_loss_ = 0, last_held_out_loss_ = 0;
};

}  // namespace shardwise::train
