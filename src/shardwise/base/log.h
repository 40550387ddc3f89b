// Log lines on standard error: "[shardwise] message", with "warning: " or "error: " where that
// fits. Thread-safe: one write call a line. The launcher adds the rank in front.
#pragma once

#include <string_view>

namespace shardwise {

enum class LogLevel { kInfo, kWarning, kError };

void log(LogLevel level, std::string_view message);

inline void log_info(std::string_view message) { log(LogLevel::kInfo, message); }
inline void log_warning(std::string_view message) { log(LogLevel::kWarning, message); }
inline void log_error(std::string_view message) { log(LogLevel::kError, message); }

}  // namespace shardwise
