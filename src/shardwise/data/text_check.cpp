#include "shardwise/data/text_check.h"

#include "shardwise/base/check.h"
#include "shardwise/data/unicode.h"

namespace shardwise::data {
namespace {

// A corpus of bytes is read in place, so looking at all of it would read it once more.
constexpr std::size_t kLookedAt = std::size_t{1} << 20;

}  // namespace

void check_not_binary(std::string_view text, const std::string& path) {
  const std::size_t at = text.substr(0, kLookedAt).find('\0');
  SW_USER_CHECK(
      DataError, at == std::string_view::npos, path, ": byte ", at,
      " is NUL, so this is a binary file or UTF-16, not text; give text in UTF-8, or token "
      "files as `shardwise data tokenize` makes them of text");
}

void check_utf8(std::string_view text, const std::string& path, std::size_t begin) {
  const std::size_t at = valid_utf8_prefix(text);
  if (at == text.size()) {
    return;
  }
  constexpr const char* kDigits = "0123456789ABCDEF";
  const auto byte = static_cast<unsigned char>(text[at]);
  SW_FAIL(DataError, path, ": byte ", begin + at, " (0x", kDigits[byte / 16], kDigits[byte % 16],
          ") is not UTF-8; convert the file, for example `iconv -f LATIN1 -t UTF-8`, or use the "
          "tokenizer \"bytes\", which takes any text");
}

}  // namespace shardwise::data
