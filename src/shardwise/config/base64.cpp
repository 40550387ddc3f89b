#include "shardwise/config/base64.h"

#include <cstdint>

namespace shardwise::config {
namespace {

// The six bits of a character, -1 when it is not in the alphabets.
int bits_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+' || c == '-') return 62;
  if (c == '/' || c == '_') return 63;
  return -1;
}

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  std::size_t padding = 0;
  while (!text.empty() && text.back() == '=') {
    text.remove_suffix(1);
    ++padding;
  }
  const std::size_t last = text.size() % 4;
  const bool padded_right = padding == 0 || (padding <= 2 && (text.size() + padding) % 4 == 0);
  if (last == 1 || !padded_right) {
    return std::nullopt;
  }
  std::string bytes;
  std::uint32_t buffer = 0;
  int bits = 0;
  for (const char c : text) {
    const int value = bits_of(c);
    if (value < 0) {
      return std::nullopt;
    }
    buffer = (buffer << 6 | static_cast<std::uint32_t>(value)) & 0xFFFFU;
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      bytes.push_back(static_cast<char>(buffer >> bits & 0xFFU));
    }
  }
  return bytes;
}

}  // namespace shardwise::config
