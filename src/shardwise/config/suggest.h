// What to say about a key that does not exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardwise/config/schema.h"

namespace shardwise::config {

// Edits (insert, delete, replace, swap of neighbours) that turn one name into the other, without
// regard to case. Optimal string alignment distance.
int edit_distance(std::string_view a, std::string_view b);

// The names nearest to `name`, best first, at most three; empty when none is near.
std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates);

// "did you mean stage?", "stage belongs under zero_optimization", ... for a key that `section` does
// not have. Only a `job` document has keys of job files.
std::string advice(const Node& section, const std::string& key, bool job = false);

// The same for a whole path that was asked for.
std::string advice_for_path(std::string_view path, bool job = false);

// "a, b or c".
std::string join_or(const std::vector<std::string>& parts);

}  // namespace shardwise::config
