// Records some steps of a run as a trace: every operation of the host and kernel of the GPU with
// its time, in the format that chrome://tracing and https://ui.perfetto.dev show.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "shardwise/config/config.h"

namespace shardwise::diagnostics {

// Used by one thread, the one that trains. Waits for the device at both ends of the recording and
// does nothing in other steps.
class TraceRecorder {
 public:
  // `trace.first_step` 0: never records. What prevents a trace is a warning, not an error.
  TraceRecorder(const config::TraceConfig& trace, c10::Device device);
  // Writes what there is, where the run ends inside the recorded steps.
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // Optimizer step `number`, counted from 1, was launched.
  void after_step(std::int64_t number);

 private:
  void begin();
  void end();

  config::TraceConfig trace_;
  c10::Device device_;
  bool recording_ = false;
};

}  // namespace shardwise::diagnostics
