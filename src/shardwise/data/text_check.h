// Files that are no text, which a tokenizer would turn into tokens all the same.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardwise::data {

// Throws DataError with the offset where there is a NUL byte in the first megabyte of a file: text
// has none, binary files and UTF-16 have them early.
void check_not_binary(std::string_view text, const std::string& path);

// Throws DataError with the offset of the first byte that is no UTF-8. `begin` is where the text
// begins in the file.
void check_utf8(std::string_view text, const std::string& path, std::size_t begin = 0);

}  // namespace shardwise::data
