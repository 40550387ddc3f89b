#include "shardwise/diagnostics/trace_recorder.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <exception>
#include <fstream>
#include <set>

#include "shardwise/base/check.h"
#include "shardwise/base/log.h"

namespace shardwise::diagnostics {
namespace {

namespace profiler = torch::profiler::impl;

void wait_for(c10::Device device) {
  if (!device.is_cpu()) {
    at::accelerator::synchronizeDevice(device.index());
  }
}

}  // namespace

TraceRecorder::TraceRecorder(const config::TraceConfig& trace, c10::Device device)
    : trace_(trace), device_(device) {
  after_step(0);
}

TraceRecorder::~TraceRecorder() { end(); }

void TraceRecorder::after_step(std::int64_t number) {
  if (trace_.first_step == 0) {
    return;
  }
  if (recording_ && number + 1 >= trace_.first_step + trace_.steps) {
    end();
  } else if (number + 1 == trace_.first_step) {
    begin();
  }
}

void TraceRecorder::begin() {
  if (profiler::profilerEnabled()) {
    log_warning("shardwise.trace: another profiler of torch is running, so there is no trace");
    return;
  }
  if (!std::ofstream(trace_.path, std::ios::app)) {
    log_warning(concat("shardwise.trace.path: ", trace_.path, " cannot be written, so there is no ",
                       "trace; name a file in a folder that exists and is yours"));
    return;
  }
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  std::set<profiler::ActivityType> activities{profiler::ActivityType::CPU};
  if (!device_.is_cpu()) {
    activities.insert(profiler::ActivityType::CUDA);
  }
  wait_for(device_);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  recording_ = true;
}

void TraceRecorder::end() {
  if (!recording_) {
    return;
  }
  recording_ = false;
  try {
    wait_for(device_);
    torch::autograd::profiler::disableProfiler()->save(trace_.path);
    log_info(concat("trace from step ", trace_.first_step, " on: ", trace_.path));
  } catch (const std::exception& error) {  // a lost trace ends no training
    log_warning(concat("shardwise.trace: the trace was not written: ", error.what()));
  }
}

}  // namespace shardwise::diagnostics
