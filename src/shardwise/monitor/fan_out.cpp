#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/monitor/monitor.h"

namespace shardwise::monitor {
namespace {

class FanOut : public Sink {
 public:
  explicit FanOut(std::vector<std::unique_ptr<Sink>> sinks) : sinks_(std::move(sinks)) {
    for (const auto& sink : sinks_) SW_CHECK(sink != nullptr);
  }

  void begin(const RunInfo& run) override {
    for (const auto& sink : sinks_) sink->begin(run);
  }
  void step(const StepRecord& record) override {
    for (const auto& sink : sinks_) sink->step(record);
  }
  void evaluation(const EvaluationRecord& record) override {
    for (const auto& sink : sinks_) sink->evaluation(record);
  }
  void sample(std::int64_t step, const std::string& prompt, const std::string& text) override {
    for (const auto& sink : sinks_) sink->sample(step, prompt, text);
  }
  void note(const std::string& text) override {
    for (const auto& sink : sinks_) sink->note(text);
  }
  void end(const std::string& error) override {
    for (const auto& sink : sinks_) sink->end(error);
  }

 private:
  std::vector<std::unique_ptr<Sink>> sinks_;
};

}  // namespace

std::unique_ptr<Sink> make_fan_out(std::vector<std::unique_ptr<Sink>> sinks) {
  return std::make_unique<FanOut>(std::move(sinks));
}

}  // namespace shardwise::monitor
