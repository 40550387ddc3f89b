#include "shardwise/base/log.h"

#include <unistd.h>

#include <string>

namespace shardwise {
namespace {

const char* prefix(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo: return "[shardwise] ";
    case LogLevel::kWarning: return "[shardwise] warning: ";
    case LogLevel::kError: return "[shardwise] error: ";
  }
  return "";
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  std::string line = prefix(level);
  line.append(message);
  line.push_back('\n');
  // A log that cannot be written is not worth failing for.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace shardwise
