// The console sink with its surroundings as arguments.
#pragma once

#include <functional>
#include <memory>

#include "shardwise/monitor/monitor.h"

namespace shardwise::monitor {

struct ConsoleOptions {
  // A terminal shows changes faster than one can read; writing them costs time.
  static constexpr double kRedrawSeconds = 0.1;
  static constexpr double kLineSeconds = 5;

  int descriptor = 2;
  bool terminal = false;        // draw a bar
  std::function<double()> now;  // seconds
};

std::unique_ptr<Sink> make_console_sink(const ConsoleOptions& options);

}  // namespace shardwise::monitor
