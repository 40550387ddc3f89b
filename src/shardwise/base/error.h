// The error family. Python sees ConfigError as ValueError, UsageError and CommunicationError as
// RuntimeError, IoError as OSError; programs exit with `exit_code()`.
#pragma once

#include <stdexcept>
#include <string>

namespace shardwise {

enum class ErrorKind { kConfig, kUsage, kData, kCommunication, kIo, kInternal };

// Name as users see it: "ConfigError", "UsageError", ...
const char* error_kind_name(ErrorKind kind);

// Exit status of a program that ends with this kind of error (sysexits.h numbers where one fits).
int exit_code(ErrorKind kind);

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// The user's configuration is wrong. The message names the key and a value that would work.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message) : Error(ErrorKind::kConfig, message) {}
};

// The API was called in a way that cannot work (step without backward, released parameter, ...).
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(ErrorKind::kUsage, message) {}
};

// The training data or a model file has wrong content.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message) : Error(ErrorKind::kData, message) {}
};

// A collective failed, timed out, or ran in another order than on the other ranks.
class CommunicationError : public Error {
 public:
  explicit CommunicationError(const std::string& message)
      : Error(ErrorKind::kCommunication, message) {}
};

// The operating system refused (missing file, full disk, no permission).
class IoError : public Error {
 public:
  explicit IoError(const std::string& message) : Error(ErrorKind::kIo, message) {}
};

// A bug of our own.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(ErrorKind::kInternal, message) {}
};

}  // namespace shardwise
