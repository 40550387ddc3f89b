// The HTML page of a run.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "shardwise/monitor/curve.h"
#include "shardwise/monitor/monitor.h"

namespace shardwise::monitor {

// What the page shows, in bounded memory.
class RunHistory {
 public:
  // A character becomes up to six when it is escaped: with these, the page stays below a megabyte.
  static constexpr std::size_t kSamples = 10;
  static constexpr std::size_t kSampleBytes = 6 << 10;
  static constexpr std::size_t kPromptBytes = 1536;
  static constexpr std::size_t kConfigBytes = 32 << 10;
  static constexpr std::size_t kEvaluations = 256;

  enum class State { kRunning, kFinished, kFailed };

  struct Sample {
    std::int64_t step;
    std::string prompt, text;
  };

  void begin(const RunInfo& run);
  void add(const StepRecord& record);
  void add(const EvaluationRecord& record);
  void add(Sample sample);
  void end(const std::string& error);

  struct Curves {
    Curve loss, lr, grad_norm, tokens_per_second;
    Curve held_out{kEvaluations};
  };
  struct Totals {
    // Steps that changed nothing, other steps whose loss or norm was not finite, samples.
    std::int64_t skipped = 0, not_finite = 0, samples = 0;
    std::optional<EvaluationRecord> best, last_evaluation;
    std::optional<StepRecord> first, last;
  };

  State state() const { return state_; }
  const std::string& error() const { return error_; }
  const RunInfo& run() const { return run_; }
  const Curves& curves() const { return curves_; }
  const Totals& totals() const { return totals_; }
  const std::deque<Sample>& samples() const { return samples_; }

 private:
  RunInfo run_;
  State state_ = State::kRunning;
  std::string error_;
  Curves curves_;
  Totals totals_;
  std::deque<Sample> samples_;  // the last ones
};

// `now`: the time for "as of", in words. While the run goes on, browsers load the page again every
// `seconds`.
std::string report_page(const RunHistory& history, const std::string& now, double seconds);

}  // namespace shardwise::monitor
