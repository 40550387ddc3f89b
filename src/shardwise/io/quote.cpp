#include "shardwise/io/quote.h"

namespace shardwise::io {
namespace {

std::string_view shortened(std::string_view text, std::size_t most) {
  std::size_t end = most;
  // Bytes 10xxxxxx continue a character of UTF-8, which has at most three of them.
  while (end > 0 && most - end < 3 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return text.substr(0, end);
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  const bool cut = text.size() > most;
  std::string result;
  for (const char c : cut ? shortened(text, most) : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20U || byte == 0x7FU) {
      result += {'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 15U]};
    } else {
      result += c;
    }
  }
  return cut ? result + "..." : result;
}

std::string quoted(std::string_view text, std::size_t most) {
  return '"' + printable(text, most) + '"';
}

}  // namespace shardwise::io
