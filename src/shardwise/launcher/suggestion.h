// "Did you mean" for words that people type: options and sub-commands.
#pragma once

#include <string>
#include <vector>

namespace shardwise::launcher {

// " (did you mean --ranks?)" with those of `known` that are near, or "" when none is.
std::string suggest(const std::string& word, const std::vector<std::string>& known);

}  // namespace shardwise::launcher
