#include "shardwise/monitor/console_sink.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <optional>
#include <string_view>

#include "shardwise/base/check.h"
#include "shardwise/config/env.h"
#include "shardwise/io/descriptor.h"
#include "shardwise/monitor/format.h"
#include "shardwise/monitor/guarded_sink.h"
#include "shardwise/monitor/output.h"
#include "shardwise/monitor/progress_line.h"
#include "shardwise/monitor/text.h"

namespace shardwise::monitor {
namespace {

constexpr const char* kStartOfLine = "\r";
constexpr const char* kEraseToEnd = "\x1b[K";

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Under `shardwise launch` ranks write to pipes; the launcher says when a terminal is behind them.
bool is_terminal(int descriptor) {
  const std::optional<std::string> kind = config::environment_variable("TERM");
  const bool behind_launcher = config::environment_variable("SHARDWISE_TERMINAL") == "1";
  return (::isatty(descriptor) == 1 || behind_launcher) && kind && !kind->empty() &&
         *kind != "dumb";
}

// Columns that may be used. The last one stays empty: some terminals go to the next line when it is
// written.
int usable_columns(int descriptor) {
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col - 1;
  const std::string told = config::environment_variable("COLUMNS").value_or("");
  int columns = 0;
  std::from_chars(told.data(), told.data() + told.size(), columns);
  return (columns > 0 ? columns : 80) - 1;
}

// Each line behind "  | ".
std::string quoted(const std::string& text) {
  std::string out = "  | ";
  for (const char c : printable_text(text)) {
    out += c;
    if (c == '\n') out += "  | ";
  }
  return out;
}

class ConsoleSink : public Sink {
 public:
  explicit ConsoleSink(const ConsoleOptions& options) : options_(options) {}
  ~ConsoleSink() override {
    if (drawn_) write_all(options_.descriptor, "\n");
  }
  ConsoleSink(const ConsoleSink&) = delete;
  ConsoleSink& operator=(const ConsoleSink&) = delete;

  void begin(const RunInfo& run) override {
    progress_.steps = run.steps;
    if (!run.title.empty()) line(printable_text(run.title));
  }

  void step(const StepRecord& record) override {
    update(record);
    const double now = options_.now();
    const double pause =
        options_.terminal ? ConsoleOptions::kRedrawSeconds : ConsoleOptions::kLineSeconds;
    if (shown_at_ && now - *shown_at_ < pause && record.step != progress_.steps) {
      waiting_ = true;
      return;
    }
    shown_at_ = now;
    show();
  }

  void evaluation(const EvaluationRecord& record) override {
    line(concat("step ", record.step, "  held-out loss ", digits(record.loss, 4), "  (",
                scaled(static_cast<double>(record.tokens)), " tokens)"));
  }

  void sample(std::int64_t step, const std::string& prompt, const std::string& text) override {
    line(concat("step ", step, "  sample\n", quoted(prompt + text)));
  }

  void note(const std::string& text) override { line(printable_text(text)); }

  void end(const std::string& error) override {
    if (waiting_) show();
    if (drawn_) write("\n");
    drawn_ = false;
    if (error.empty()) return;
    const std::string_view first_line = std::string_view(error).substr(0, error.find('\n'));
    line(concat("failed after step ", progress_.record.step, ": ", printable_text(first_line)));
  }

 private:
  void update(const StepRecord& record) {
    if (!first_) first_ = record;
    progress_.record = record;
    progress_.skipped += record.skipped ? 1 : 0;
    const auto passed = static_cast<double>(record.step - first_->step);
    const auto left = static_cast<double>(progress_.steps - record.step);
    const bool known = passed > 0 && left >= 0 && progress_.steps > 0;
    progress_.eta = known ? (record.seconds - first_->seconds) / passed * left : -1;
  }

  void show() {
    waiting_ = false;
    if (options_.terminal) {
      write(drawing());
    } else {
      write(plain_line(progress_) + "\n");
    }
  }

  std::string drawing() {
    drawn_ = true;
    return kStartOfLine + bar_line(progress_, usable_columns(options_.descriptor)) + kEraseToEnd;
  }

  // Above the bar.
  void line(const std::string& text) {
    if (!drawn_) return write(text + "\n");
    std::string all = concat(kStartOfLine, kEraseToEnd, text, "\n");
    write(all + drawing());
  }

  void write(std::string_view text) {
    const int error = write_all(options_.descriptor, text);
    if (error != 0) io::fail_io("progress", "write", error);
  }

  ConsoleOptions options_;
  Progress progress_;
  std::optional<StepRecord> first_;
  std::optional<double> shown_at_;
  bool waiting_ = false;  // the last step has not been shown
  bool drawn_ = false;    // the bar stands in the cursor's line
};

}  // namespace

std::unique_ptr<Sink> make_console_sink(const ConsoleOptions& options) {
  return make_guarded("the console", std::make_unique<ConsoleSink>(options));
}

std::unique_ptr<Sink> make_console_sink(int descriptor) {
  return make_console_sink(ConsoleOptions{descriptor, is_terminal(descriptor), steady_seconds});
}

}  // namespace shardwise::monitor
