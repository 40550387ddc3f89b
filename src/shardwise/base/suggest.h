// "Did you mean": what a name that was not found may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

// Edits (insert, delete, replace, swap of neighbours) that turn one name into the other. Optimal
// string alignment distance; time in proportion to the product of the lengths.
int edit_distance(std::string_view a, std::string_view b);

// Whether two names differ in case or in "-", " " and "_" alone.
bool same_name(std::string_view a, std::string_view b);

// The names nearest to `name`, best first, at most three; empty when none is near. Case counts for
// nothing. Names of more than 200 bytes are not compared.
std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates);

// "a, b or c".
std::string join_or(const std::vector<std::string>& parts);

// " (did you mean --ranks?)" with those of `known` that are near, or "" when none is.
std::string suggest(std::string_view word, const std::vector<std::string>& known);

}  // namespace shardwise
