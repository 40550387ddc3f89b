#include <chrono>
#include <ctime>
#include <utility>

#include "shardwise/io/atomic_file.h"
#include "shardwise/monitor/guarded_sink.h"
#include "shardwise/monitor/monitor.h"
#include "shardwise/monitor/output.h"
#include "shardwise/monitor/report_page.h"

namespace shardwise::monitor {
namespace {

using Clock = std::chrono::steady_clock;

std::string time_in_words() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[64];
  const std::size_t size = std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S %Z", &parts);
  return std::string(text, size);
}

class ReportSink : public Sink {
 public:
  ReportSink(std::string path, double seconds) : path_(std::move(path)), seconds_(seconds) {
    check_folder(path_);
    io::check_replaceable(path_);
  }

  void begin(const RunInfo& run) override {
    history_.begin(run);
    write();
  }
  void step(const StepRecord& record) override {
    history_.add(record);
    write_when_due();
  }
  void evaluation(const EvaluationRecord& record) override {
    history_.add(record);
    write_when_due();
  }
  void sample(std::int64_t step, const std::string& prompt, const std::string& text) override {
    history_.add({step, prompt, text});
    write_when_due();
  }
  void end(const std::string& error) override {
    history_.end(error);
    write();
  }

 private:
  void write_when_due() {
    if (std::chrono::duration<double>(Clock::now() - written_).count() >= seconds_) write();
  }

  void write() {
    io::AtomicFile file(path_);
    file.write(report_page(history_, time_in_words(), seconds_));
    file.commit();
    written_ = Clock::now();
  }

  std::string path_;
  double seconds_;
  RunHistory history_;
  Clock::time_point written_{};
};

}  // namespace

std::unique_ptr<Sink> make_report_sink(const std::string& path, double seconds) {
  return make_guarded("the report", std::make_unique<ReportSink>(path, seconds));
}

}  // namespace shardwise::monitor
