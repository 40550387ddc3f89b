// For tests only: broken variants of valid files, the same for the same seed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

namespace shardwise {

// Makes mutants of one kind of file after the other; use mutate() below.
class Mutator {
 public:
  explicit Mutator(std::mt19937_64& random) : random_(random) {}

  void edit(std::string& text) {
    switch (pick(11)) {
      case 0: flip_bit(text); break;
      case 1: set_byte(text); break;
      case 2: erase(text); break;
      case 3: insert_piece(text); break;
      case 4: repeat(text); break;
      case 5: splice(text); break;
      case 6: change_digits(text); break;
      case 7: change_binary_number(text); break;
      case 8: swap_parts(text); break;
      case 9: rare(text); break;
      default: drop_token(text); break;
    }
  }

 private:
  std::size_t pick(std::size_t end) { return static_cast<std::size_t>(random_() % end); }
  std::size_t place(const std::string& text) { return pick(text.size() + 1); }

  void flip_bit(std::string& text) {
    if (!text.empty()) {
      char& byte = text[pick(text.size())];
      byte = static_cast<char>(static_cast<unsigned char>(byte) ^ (1U << pick(8)));
    }
  }

  void set_byte(std::string& text) {
    if (!text.empty()) {
      text[pick(text.size())] = static_cast<char>(pick(256));
    }
  }

  void erase(std::string& text) { text.erase(place(text), pick(12)); }

  void insert_piece(std::string& text) {
    static constexpr std::array<std::string_view, 34> kPieces = {
        "{",    "}",    "[",       "]",        ",",     ":",   "\"",      "\\",  "null",
        "true", "-1",   "0",       "1e999",    "NaN",   "0.5", "1e5",     "-",   "\\u0000",
        "//",   "\xFF", "\xC3",    "\xED\xA0", "[]",    "{}",  "\"\"",    "../", "{\"a\":",
        "..",   "\n",   "\\ud800", "\"a\":1,", "false", "-0",  "Infinity"};
    text.insert(place(text), kPieces[pick(kPieces.size())]);
  }

  void repeat(std::string& text) {
    const std::size_t from = place(text);
    text.insert(place(text), text.substr(from, pick(40)));
  }

  void splice(std::string& text) {
    const std::string part = text.substr(place(text), pick(40));
    const std::size_t at = place(text);
    text.replace(at, std::min(part.size(), text.size() - at), part);
  }

  // Puts another number where the text has digits.
  void change_digits(std::string& text) {
    static constexpr std::array<std::string_view, 16> kNumbers = {"0",
                                                                  "1",
                                                                  "-1",
                                                                  "2",
                                                                  "7",
                                                                  "8",
                                                                  "255",
                                                                  "256",
                                                                  "65536",
                                                                  "2147483648",
                                                                  "4294967296",
                                                                  "1e3",
                                                                  "1.5",
                                                                  "-0.0",
                                                                  "9223372036854775807",
                                                                  "18446744073709551616"};
    constexpr const char* kDigits = "0123456789";
    const std::size_t at = text.find_first_of(kDigits, place(text));
    if (at != std::string::npos) {
      const std::size_t end = std::min(text.find_first_not_of(kDigits, at), text.size());
      text.replace(at, end - at, kNumbers[pick(kNumbers.size())]);
    }
  }

  // Puts a limit, or a neighbour of the number there, into 4 or 8 aligned bytes.
  void change_binary_number(std::string& text) {
    const std::size_t width = pick(2) == 0 ? 4 : 8;
    if (text.size() < width) {
      return;
    }
    // Numbers stand at the beginning of most binary files.
    const std::size_t end = pick(2) == 0 ? std::min<std::size_t>(text.size(), 64) : text.size();
    const std::size_t at = pick(end / width) * width;
    std::uint64_t number = 0;
    std::memcpy(&number, text.data() + at, width);
    switch (pick(6)) {
      case 0: number += 1; break;
      case 1: number -= 1; break;
      case 2: number = ~std::uint64_t{0} >> pick(64); break;
      case 3: number = std::uint64_t{1} << pick(64); break;
      case 4: number = 0; break;
      default: number = random_(); break;
    }
    std::memcpy(text.data() + at, &number, width);
  }

  void swap_parts(std::string& text) {
    const std::size_t length = pick(16);
    if (text.size() >= 2 * length) {
      const std::size_t first = pick(text.size() - 2 * length + 1);
      const std::size_t second = first + length + pick(text.size() - first - 2 * length + 1);
      std::swap_ranges(text.begin() + static_cast<std::ptrdiff_t>(first),
                       text.begin() + static_cast<std::ptrdiff_t>(first + length),
                       text.begin() + static_cast<std::ptrdiff_t>(second));
    }
  }

  // Removes from one separator to the next: a member of an object, an item of a list.
  void drop_token(std::string& text) {
    constexpr const char* kSeparators = ",:[]{}\n";
    const std::size_t begin = text.find_first_of(kSeparators, place(text));
    if (begin != std::string::npos) {
      const std::size_t end = std::min(text.find_first_of(kSeparators, begin + 1), text.size());
      text.erase(begin, end - begin);
    }
  }

  // What ends most mutants at once, and therefore comes seldom.
  void rare(std::string& text) {
    const std::size_t length = std::size_t{1} << pick(13);
    switch (pick(8)) {
      case 0: text.resize(pick(text.size() + 1)); break;
      case 1: text.insert(place(text), length, '['); break;
      case 2: text.insert(place(text), bomb(length)); break;
      case 3: text.insert(place(text), length, static_cast<char>(pick(256))); break;
      case 4: text.append(length % 64, static_cast<char>(pick(256))); break;
      default: flip_bit(text); break;
    }
  }

  // Balanced, so that only a limit of depth can refuse it.
  static std::string bomb(std::size_t depth) {
    std::string text;
    for (std::size_t i = 0; i < depth; ++i) {
      text += i % 2 == 0 ? "[" : "{\"a\":";
    }
    text += "1";
    for (std::size_t i = depth; i > 0; --i) {
      text += i % 2 == 1 ? ']' : '}';
    }
    return text;
  }

  std::mt19937_64& random_;
};

// `valid` with one to four edits: flipped bits, erased, repeated and exchanged parts, other numbers
// (digits and little-endian integers), pieces of JSON, truncation, nesting bombs. At most about
// 100 KiB longer than `valid`.
inline std::string mutate(const std::string& valid, std::mt19937_64& random) {
  std::string text = valid;
  Mutator mutator(random);
  // Mostly one edit: mutants with many are refused at the first and test little.
  for (std::uint64_t edits = 1 + random() % 8 / 5 + random() % 8 / 6 + random() % 8 / 7; edits > 0;
       --edits) {
    mutator.edit(text);
  }
  return text;
}

}  // namespace shardwise
