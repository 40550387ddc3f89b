#include "shardwise/base/error.h"

namespace shardwise {

const char* error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig: return "ConfigError";
    case ErrorKind::kUsage: return "UsageError";
    case ErrorKind::kData: return "DataError";
    case ErrorKind::kCommunication: return "CommunicationError";
    case ErrorKind::kIo: return "IoError";
    case ErrorKind::kInternal: return "InternalError";
  }
  return "Error";
}

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig: return 78;         // EX_CONFIG
    case ErrorKind::kUsage: return 64;          // EX_USAGE
    case ErrorKind::kData: return 65;           // EX_DATAERR
    case ErrorKind::kCommunication: return 75;  // EX_TEMPFAIL
    case ErrorKind::kIo: return 74;             // EX_IOERR
    case ErrorKind::kInternal: return 70;       // EX_SOFTWARE
  }
  return 70;
}

}  // namespace shardwise
