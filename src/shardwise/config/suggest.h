// What to say about a key that does not exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardwise/config/schema.h"

namespace shardwise::config {

// "did you mean stage?", "stage belongs under zero_optimization", ... for a key that `section` does
// not have. Only a `job` document has keys of job files. `settings`: the names in the section that
// count, where its type leaves only some of them; empty: all.
std::string advice(const Node& section, const std::string& key, bool job = false,
                   const std::vector<std::string>& settings = {});

// The same for a whole path that was asked for.
std::string advice_for_path(std::string_view path, bool job = false);

}  // namespace shardwise::config
