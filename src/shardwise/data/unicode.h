// Unicode as tokenizers need it: UTF-8, normal forms, character classes. On utf8proc.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardwise::data {

// U+FFFD, which stands for bytes that are no UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Length of the longest prefix that is valid UTF-8 (no surrogates, no overlong forms).
std::size_t valid_utf8_prefix(std::string_view text);

// The text with each maximal ill-formed part replaced by U+FFFD (Unicode 15.0, section 3.9, "U+FFFD
// Substitution of Maximal Subparts"), as Rust's from_utf8_lossy and Python's errors="replace" do.
std::string replace_invalid_utf8(std::string_view text);

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;
};

// The first character of valid UTF-8 that is not empty.
CodePoint first_code_point(std::string_view text);
// The last one.
CodePoint last_code_point(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Unicode normalization of valid UTF-8, in time that grows as n log n for any text.
std::string normalize(std::string_view text, NormalForm form);

// Appends the full lower-case mapping of one character.
void append_lower(std::string& text, char32_t code_point);

bool is_space(char32_t code_point);        // property White_Space
bool is_number(char32_t code_point);       // categories Nd, Nl, No
bool is_mark(char32_t code_point);         // categories Mn, Mc, Me
bool is_punctuation(char32_t code_point);  // ASCII punctuation and the categories P*

}  // namespace shardwise::data
