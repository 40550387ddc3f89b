// Reading documents from files.
#pragma once

#include <string>

namespace shardwise::config {

// The text of a configuration or job file, cut just above kMaxJsonBytes so that parse_json refuses
// what is longer. Throws IoError.
std::string read_document_file(const std::string& path);

}  // namespace shardwise::config
