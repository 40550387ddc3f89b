// File names and patterns of a job to files.
#pragma once

#include <string>
#include <vector>

namespace shardwise::data {

// The files that `patterns` name, in their order; what one pattern (*, ?, [...]) matches is sorted.
// A name that exists is taken as it is. `key` stands for the list in errors: ConfigError for an
// empty list, a pattern that matches nothing and a folder, IoError for a file that does not exist.
std::vector<std::string> expand_files(const std::vector<std::string>& patterns,
                                      const std::string& key);

}  // namespace shardwise::data
