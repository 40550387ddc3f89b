// A run of known numbers for tests of several sinks.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "shardwise/monitor/monitor.h"

namespace shardwise::monitor {

inline StepRecord recorded_step(std::int64_t step, std::int64_t steps) {
  StepRecord record;
  const double at = static_cast<double>(step) / static_cast<double>(steps);
  // A hash of the step stands for noise.
  const double noise = std::sin(static_cast<double>(step) * 12.9898) * 43758.5453;
  const double spread = noise - std::floor(noise) - 0.5;
  record.step = step;
  record.loss = 1.9 + 8.9 * std::exp(-18 * at) + 0.6 * (1 - at) + 0.25 * spread;
  record.lr = 3e-4 * std::min(at / 0.1, 0.55 + 0.45 * std::cos(3.14159 * (at - 0.1) / 0.9));
  record.grad_norm = 0.6 + 4 * std::exp(-25 * at) + 0.5 * spread * spread;
  record.loss_scale = 65536;
  record.skipped = step % 137 == 90;
  if (record.skipped) record.grad_norm = std::numeric_limits<double>::infinity();
  record.tokens_per_second = 12300 + 900 * spread;
  record.tokens = step * 8192;
  record.samples = step * 32;
  record.seconds = static_cast<double>(step) * 0.66;
  record.peak_memory = (std::int64_t{3} << 30) + step;
  return record;
}

// `steps` steps, ten evaluations, two samples; without end().
inline void play_run(Sink& sink, std::int64_t steps) {
  sink.begin(
      {"llama, 1.2 M parameters, ZeRO 3, 2 ranks <test> & \"more\"", steps,
       R"({"model": {"config": {"hidden_size": 128, "layers": [1, 2.5e-3]}}, "s": "</pre>&"})"});
  for (std::int64_t step = 1; step <= steps; ++step) {
    const StepRecord record = recorded_step(step, steps);
    sink.step(record);
    if (step % (steps / 10 + 1) == 0) sink.evaluation({step, record.loss * 0.98 + 0.15, 40960});
    if (step % (steps / 2) == 0) {
      sink.sample(step, "Once upon a time ",
                  "there was <b>a</b> little \"dog\" & a cat.\nThey said: na\xc3\xafve \xff bytes "
                  "\x1b[31m.");
    }
  }
}

}  // namespace shardwise::monitor
