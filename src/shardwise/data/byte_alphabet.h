// The alphabet of byte-level BPE: a printable character for each of the 256 bytes, as GPT-2's
// encoder.py (function bytes_to_unicode) defines it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::data {

class ByteAlphabet {
 public:
  ByteAlphabet();

  // The characters of the text's bytes.
  std::string write(std::string_view text) const;
  // The byte of a character.
  std::optional<unsigned char> byte_of(char32_t code_point) const;

 private:
  std::array<char32_t, 256> characters_;
  std::array<int, 512> bytes_;  // -1: no character of the alphabet
};

}  // namespace shardwise::data
