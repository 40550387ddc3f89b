#include "shardwise/monitor/guarded_sink.h"

#include <exception>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/base/log.h"

namespace shardwise::monitor {
namespace {

class GuardedSink : public Sink {
 public:
  GuardedSink(std::string what, std::unique_ptr<Sink> sink)
      : what_(std::move(what)), sink_(std::move(sink)) {}

  void begin(const RunInfo& run) override {
    guard([&] { sink_->begin(run); });
  }
  void step(const StepRecord& record) override {
    guard([&] { sink_->step(record); });
  }
  void evaluation(const EvaluationRecord& record) override {
    guard([&] { sink_->evaluation(record); });
  }
  void sample(std::int64_t step, const std::string& prompt, const std::string& text) override {
    guard([&] { sink_->sample(step, prompt, text); });
  }
  void note(const std::string& text) override {
    guard([&] { sink_->note(text); });
  }
  void end(const std::string& error) override {
    guard([&] { sink_->end(error); });
  }

 private:
  template <typename Call>
  void guard(Call&& call) {
    if (!sink_) return;
    try {
      call();
    } catch (const std::exception& error) {
      log_warning(concat(what_, ": ", error.what(), "; the training goes on without it"));
      sink_.reset();
    }
  }

  std::string what_;
  std::unique_ptr<Sink> sink_;
};

}  // namespace

std::unique_ptr<Sink> make_guarded(std::string what, std::unique_ptr<Sink> sink) {
  return std::make_unique<GuardedSink>(std::move(what), std::move(sink));
}

}  // namespace shardwise::monitor
