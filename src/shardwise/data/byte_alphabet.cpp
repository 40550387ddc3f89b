#include "shardwise/data/byte_alphabet.h"

#include "shardwise/data/unicode.h"

namespace shardwise::data {
namespace {

// Bytes that are printable in Latin-1 stand for themselves.
bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
    characters_[static_cast<std::size_t>(byte)] = character;
    bytes_[character] = byte;
  }
}

std::string ByteAlphabet::write(std::string_view text) const {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    append_utf8(out, characters_[static_cast<unsigned char>(c)]);
  }
  return out;
}

std::optional<unsigned char> ByteAlphabet::byte_of(char32_t code_point) const {
  if (code_point >= bytes_.size() || bytes_[code_point] < 0) return std::nullopt;
  return static_cast<unsigned char>(bytes_[code_point]);
}

}  // namespace shardwise::data
