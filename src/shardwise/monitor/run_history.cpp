#include <cmath>
#include <utility>

#include "shardwise/monitor/json_text.h"
#include "shardwise/monitor/report_page.h"
#include "shardwise/monitor/text.h"

namespace shardwise::monitor {
namespace {

std::string shortened(const std::string& text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  return std::string(cut_text(text, bytes)) + "\n[...]";
}

}  // namespace

void RunHistory::begin(const RunInfo& run) {
  run_ = run;
  run_.config_json = shortened(indented_json(run.config_json), kConfigBytes);
}

void RunHistory::add(const StepRecord& record) {
  const auto step = static_cast<double>(record.step);
  curves_.loss.add({step, record.loss}, record.skipped);
  curves_.lr.add({step, record.lr});
  curves_.grad_norm.add({step, record.grad_norm}, record.skipped);
  curves_.tokens_per_second.add({step, record.tokens_per_second});
  totals_.skipped += record.skipped ? 1 : 0;
  const bool finite = std::isfinite(record.loss) && std::isfinite(record.grad_norm);
  totals_.not_finite += finite || record.skipped ? 0 : 1;
  if (!totals_.first) totals_.first = record;
  totals_.last = record;
}

void RunHistory::add(const EvaluationRecord& record) {
  curves_.held_out.add({static_cast<double>(record.step), record.loss});
  totals_.last_evaluation = record;
  const bool better = !totals_.best || record.loss < totals_.best->loss;
  if (std::isfinite(record.loss) && better) totals_.best = record;
}

void RunHistory::add(Sample sample) {
  sample.prompt = shortened(sample.prompt, kPromptBytes);
  sample.text = shortened(sample.text, kSampleBytes);
  samples_.push_back(std::move(sample));
  if (samples_.size() > kSamples) samples_.pop_front();
  ++totals_.samples;
}

void RunHistory::end(const std::string& error) {
  state_ = error.empty() ? State::kFinished : State::kFailed;
  error_ = shortened(error, kSampleBytes);
}

}  // namespace shardwise::monitor
