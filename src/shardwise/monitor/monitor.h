// Where the numbers of a training run go. Sinks take plain numbers and know nothing of training.
//
// Calls come in this order: begin, then any number of the others, then end. Sinks are not
// thread-safe. A sink that cannot write (full disk, vanished folder, closed terminal) never stops
// the training: it logs one warning and ignores everything after it. What the user can correct
// beforehand (a folder that is missing or may not be written) is an IoError of the make_ function.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shardwise::monitor {

struct RunInfo {
  std::string title;        // "llama, 1.2 M parameters, ZeRO 3, 2 ranks"
  std::int64_t steps = 0;   // planned
  std::string config_json;  // the resolved job
};

struct StepRecord {
  std::int64_t step = 0;  // 1-based
  double loss = 0;        // mean over the step's samples, nats a token
  double lr = 0;
  double grad_norm = 0;  // before clipping
  double loss_scale = 1;
  bool skipped = false;          // a gradient was not finite, nothing was updated
  double tokens_per_second = 0;  // of all ranks
  std::int64_t tokens = 0;       // of all ranks since the beginning
  std::int64_t samples = 0;
  double seconds = 0;            // since the beginning
  std::int64_t peak_memory = 0;  // bytes of rank 0 so far: on its GPU, else resident
};

struct EvaluationRecord {
  std::int64_t step = 0;
  double loss = 0;  // mean over the held-out tokens, nats a token
  std::int64_t tokens = 0;
};

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void begin(const RunInfo& run) = 0;
  virtual void step(const StepRecord& record) = 0;
  virtual void evaluation(const EvaluationRecord& record) = 0;
  // Text that the model wrote.
  virtual void sample(std::int64_t step, const std::string& prompt, const std::string& text) = 0;
  // A line for people ("weights saved to output/model"). The report does not show it.
  virtual void note(const std::string& text) { static_cast<void>(text); }
  // The run is over, or has failed with `error` ("": it has not).
  virtual void end(const std::string& error) = 0;
};

// Passes every call on to all sinks, in their order. None of them may be null.
std::unique_ptr<Sink> make_fan_out(std::vector<std::unique_ptr<Sink>> sinks);

// Lines for people. On a terminal a progress bar that is written over, at most ten times a second
// and as wide as the terminal, below all other lines; elsewhere (TERM unset or "dumb" too) a line
// for the first step, one every 5 seconds and one for the last step. Model output loses its control
// characters. `descriptor`: 1 or 2; it stays open.
std::unique_ptr<Sink> make_console_sink(int descriptor);

// One JSON object a line, each written by one write(2), so that a killed run leaves whole lines (at
// most the end of the last one is missing: the kernel may stop a write between two pages):
//   {"kind": "run", "unix_time", "title", "steps", "config": {...}}
//   {"kind": "step", "step", "loss", "lr", "grad_norm", "loss_scale", "skipped",
//    "tokens_per_second", "tokens", "samples", "seconds", "peak_memory"}
//   {"kind": "evaluation", "step", "loss", "tokens"}
//   {"kind": "sample", "step", "prompt", "text"}
//   {"kind": "note", "text"}
//   {"kind": "end", "error": ""}
// Numbers have the fewest digits that read back exactly; what JSON has no number for is a string:
// "NaN", "Infinity", "-Infinity". Bytes that are no UTF-8 become U+FFFD. A file of an earlier run
// is kept: run.jsonl is renamed to run.1.jsonl, or the first free number.
std::unique_ptr<Sink> make_jsonl_sink(const std::string& path);

// A self-contained HTML page (inline SVG, no script, nothing loaded from elsewhere) with curves of
// loss and held-out loss, lr, norm and tokens/s, the last samples and the configuration. Written
// atomically by begin, every `seconds` and by end. Memory and file stay below a megabyte: long
// curves are thinned to the lowest and highest value of neighbouring steps.
std::unique_ptr<Sink> make_report_sink(const std::string& path, double seconds);

}  // namespace shardwise::monitor
