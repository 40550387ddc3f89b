// JSON text to Value.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/config/json_value.h"

namespace shardwise::config {

// Lists and objects may be nested this deep; real documents need 9.
inline constexpr int kMaxJsonDepth = 64;
// Larger documents are refused: real ones have a few kilobytes.
inline constexpr std::size_t kMaxJsonBytes = std::size_t{4} << 20;

// Keys of a document, as "section.key" or "list[0].key", and the lines that they are on, from 1.
using KeyLines = std::map<std::string, std::size_t>;

bool is_utf8(std::string_view text);

// Reads one JSON document: UTF-8, an optional byte-order mark, comments (//, /* */, #), trailing
// commas, and Python's Infinity, -Infinity and NaN. Throws ConfigError that starts with `source`
// and names line and column. A key that appears twice in an object is not fatal here: it is
// described in `duplicates`, so that it can be reported together with what else is wrong. Fills
// `lines` where it is given.
Value parse_json(std::string_view text, const std::string& source,
                 std::vector<std::string>* duplicates, KeyLines* lines = nullptr);

}  // namespace shardwise::config
