// What to say about a key that does not exist.
#pragma once

#include <string>
#include <string_view>

#include "shardwise/config/schema.h"

namespace shardwise::config {

// "did you mean stage?", "stage belongs under zero_optimization", ... for a key that `section` does
// not have. Only a `job` document has keys of job files.
std::string advice(const Node& section, const std::string& key, bool job = false);

// The same for a whole path that was asked for.
std::string advice_for_path(std::string_view path, bool job = false);

}  // namespace shardwise::config
