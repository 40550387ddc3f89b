// Seconds of a clock that never goes back.
#pragma once

#include <chrono>

namespace shardwise::launcher {

inline double now_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace shardwise::launcher
