#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/io/descriptor.h"
#include "shardwise/monitor/format.h"
#include "shardwise/monitor/guarded_sink.h"
#include "shardwise/monitor/json_text.h"
#include "shardwise/monitor/monitor.h"
#include "shardwise/monitor/output.h"
#include "shardwise/monitor/text.h"

namespace shardwise::monitor {
namespace {

namespace fs = std::filesystem;

class JsonLine {
 public:
  explicit JsonLine(std::string_view kind) { add("kind", kind); }

  JsonLine& add(std::string_view name, double value) {
    return raw(name, std::isfinite(value) ? exact(value) : '"' + exact(value) + '"');
  }
  JsonLine& add(std::string_view name, std::int64_t value) {
    return raw(name, std::to_string(value));
  }
  JsonLine& add(std::string_view name, bool value) { return raw(name, value ? "true" : "false"); }
  JsonLine& add(std::string_view name, std::string_view text) {
    return raw(name, json_string(text));
  }
  JsonLine& raw(std::string_view name, std::string_view json) {
    text_.append(text_.empty() ? "{\"" : ", \"").append(name).append("\": ").append(json);
    return *this;
  }
  const std::string& text() const { return text_; }  // without the closing brace

 private:
  std::string text_;
};

// "log.jsonl" -> "log.1.jsonl", or the first number that is free.
void keep_earlier_run(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0)
    return;
  const fs::path file(path);
  for (int number = 1;; ++number) {
    fs::path kept = file;
    kept.replace_filename(concat(file.stem().string(), ".", number, file.extension().string()));
    if (::lstat(kept.c_str(), &status) == 0) continue;
    if (std::rename(file.c_str(), kept.c_str()) == 0) return;
    io::fail_io(path, "keep the log of an earlier run as '" + kept.string() + "'", errno);
  }
}

// Terminals and /dev/null take lines as well as files do; a pipe would make the training wait for
// its reader.
void check_takes_lines(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0 || S_ISCHR(status.st_mode)) return;
  const char* special = io::special_kind(status.st_mode);
  SW_USER_CHECK(IoError, special == nullptr, path, ": cannot write the log: it is ", special,
                "; remove it, or name another output folder");
}

class JsonlSink : public Sink {
 public:
  explicit JsonlSink(std::string path) : path_(std::move(path)) {
    check_folder(path_);
    check_takes_lines(path_);
  }

  void begin(const RunInfo& run) override {
    keep_earlier_run(path_);
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    file_ = io::Descriptor(::open(path_.c_str(), kFlags, 0666));
    if (!file_.is_open()) io::fail_io(path_, "open it for writing", errno);
    write(JsonLine("run")
              .add("unix_time", static_cast<std::int64_t>(std::time(nullptr)))
              .add("title", run.title)
              .add("steps", run.steps)
              .raw("config", compact_json(run.config_json)));
  }

  void step(const StepRecord& record) override {
    write(JsonLine("step")
              .add("step", record.step)
              .add("loss", record.loss)
              .add("lr", record.lr)
              .add("grad_norm", record.grad_norm)
              .add("loss_scale", record.loss_scale)
              .add("skipped", record.skipped)
              .add("tokens_per_second", record.tokens_per_second)
              .add("tokens", record.tokens)
              .add("samples", record.samples)
              .add("seconds", record.seconds)
              .add("peak_memory", record.peak_memory));
  }

  void evaluation(const EvaluationRecord& record) override {
    write(JsonLine("evaluation")
              .add("step", record.step)
              .add("loss", record.loss)
              .add("tokens", record.tokens));
  }

  void sample(std::int64_t step, const std::string& prompt, const std::string& text) override {
    write(JsonLine("sample").add("step", step).add("prompt", prompt).add("text", text));
  }

  void note(const std::string& text) override { write(JsonLine("note").add("text", text)); }

  void end(const std::string& error) override { write(JsonLine("end").add("error", error)); }

 private:
  void write(const JsonLine& line) {
    const std::string text = line.text() + "}\n";
    const int error = write_all(file_.number(), text);
    if (error == 0) {
      size_ += static_cast<off_t>(text.size());
      return;
    }
    // A disk that became full has perhaps taken half the line.
    [[maybe_unused]] const int ignored = ::ftruncate(file_.number(), size_);
    io::fail_io(path_, "write", error);
  }

  std::string path_;
  io::Descriptor file_;
  off_t size_ = 0;
};

}  // namespace

std::unique_ptr<Sink> make_jsonl_sink(const std::string& path) {
  return make_guarded("the log of numbers", std::make_unique<JsonlSink>(path));
}

}  // namespace shardwise::monitor
