// Text from files inside error messages.
#pragma once

#include <string>
#include <string_view>

namespace shardwise::io {

// `text` (UTF-8) on one line: control characters as \xNN, and whatever is longer than `most` bytes
// cut with "..." between two characters. A file may name a field with a megabyte of line feeds.
std::string printable(std::string_view text, std::size_t most = 120);

// The same in double quotes.
std::string quoted(std::string_view text, std::size_t most = 120);

}  // namespace shardwise::io
