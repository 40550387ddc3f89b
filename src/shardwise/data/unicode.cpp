#include "shardwise/data/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "shardwise/base/check.h"

namespace shardwise::data {
namespace {

using Unit = unsigned char;

// What may follow a first byte: number of bytes and the range of the second one. Unicode 15.0,
// table 3-7, "Well-Formed UTF-8 Byte Sequences".
struct Lead {
  std::size_t bytes = 0;  // 0: not a first byte
  Unit low = 0x80, high = 0xBF;
};

Lead lead_of(Unit byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

// The bytes at the front that belong together; `whole` says whether they are a character.
struct Subpart {
  std::size_t bytes = 1;
  bool whole = false;
};

Subpart first_subpart(std::string_view text) {
  const Lead lead = lead_of(static_cast<Unit>(text.front()));
  if (lead.bytes == 0) return {};
  for (std::size_t i = 1; i < lead.bytes; ++i) {
    const Unit low = i == 1 ? lead.low : 0x80;
    const Unit high = i == 1 ? lead.high : 0xBF;
    if (i >= text.size() || static_cast<Unit>(text[i]) < low || static_cast<Unit>(text[i]) > high) {
      return {i, false};
    }
  }
  return {lead.bytes, true};
}

// Appends the full decomposition of one character.
void decompose(char32_t code_point, utf8proc_option_t options, std::vector<utf8proc_int32_t>& out) {
  std::array<utf8proc_int32_t, 32> buffer;  // the longest decomposition has 18 characters
  int boundary = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), buffer.data(),
                              static_cast<utf8proc_ssize_t>(buffer.size()), options, &boundary);
  SW_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(buffer.size()), "U+",
           static_cast<std::uint32_t>(code_point));
  out.insert(out.end(), buffer.begin(), buffer.begin() + count);
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Canonical ordering (Unicode 15.0, section 3.11). utf8proc_decompose() does the same by exchanging
// neighbours, which takes quadratic time for long runs of marks.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  auto at = text.begin();
  while (at != text.end()) {
    if (combining_class(*at) == 0) {
      ++at;
      continue;
    }
    const auto end = std::find_if(at, text.end(), [](auto c) { return combining_class(c) == 0; });
    std::stable_sort(at, end,
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    at = end;
  }
}

// Normalizes a run that neither composes nor reorders with what is around it.
void normalize_run(std::string_view text, NormalForm form, std::string& out) {
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> code_points;
  while (!text.empty()) {
    const CodePoint next = first_code_point(text);
    decompose(next.value, options, code_points);
    text.remove_prefix(next.bytes);
  }
  order_marks(code_points);
  if (compose) {
    const utf8proc_ssize_t count = utf8proc_normalize_utf32(
        code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    SW_CHECK_GE(count, 0);
    code_points.resize(static_cast<std::size_t>(count));
  }
  for (const utf8proc_int32_t c : code_points) {
    append_utf8(out, static_cast<char32_t>(c));
  }
}

bool is_ascii(char c) { return static_cast<Unit>(c) < 0x80; }

bool has_category(char32_t code_point, utf8proc_category_t first, utf8proc_category_t last) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category >= first && category <= last;
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (is_ascii(text[at])) {
      ++at;
      continue;
    }
    const Subpart part = first_subpart(text.substr(at));
    if (!part.whole) break;
    at += part.bytes;
  }
  return at;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    if (!text.empty()) {
      out += kReplacementCharacter;
      text.remove_prefix(first_subpart(text).bytes);
    }
  }
  return out;
}

CodePoint first_code_point(std::string_view text) {
  const auto unit = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<Unit>(text[i]));
  };
  const char32_t first = unit(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {((first & 0x1F) << 6) | (unit(1) & 0x3F), 2};
  if (first < 0xF0) {
    return {((first & 0x0F) << 12) | ((unit(1) & 0x3F) << 6) | (unit(2) & 0x3F), 3};
  }
  return {((first & 0x07) << 18) | ((unit(1) & 0x3F) << 12) | ((unit(2) & 0x3F) << 6) |
              (unit(3) & 0x3F),
          4};
}

CodePoint last_code_point(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while ((static_cast<Unit>(text[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  return first_code_point(text.substr(begin));
}

void append_utf8(std::string& text, char32_t c) {
  const auto push = [&](char32_t unit) { text.push_back(static_cast<char>(unit)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xC0 | (c >> 6));
    push(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    push(0xE0 | (c >> 12));
    push(0x80 | ((c >> 6) & 0x3F));
    push(0x80 | (c & 0x3F));
  } else {
    push(0xF0 | (c >> 18));
    push(0x80 | ((c >> 12) & 0x3F));
    push(0x80 | ((c >> 6) & 0x3F));
    push(0x80 | (c & 0x3F));
  }
}

std::string normalize(std::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size());
  // An ASCII character that another one follows stays as it is in every form; so runs are cut
  // there.
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = begin;
    while (end < text.size() && is_ascii(text[end]) &&
           (end + 1 == text.size() || is_ascii(text[end + 1]))) {
      ++end;
    }
    out += text.substr(begin, end - begin);
    begin = end;
    end = begin + 1;
    while (end < text.size() &&
           !(is_ascii(text[end]) && (end + 1 == text.size() || is_ascii(text[end + 1])))) {
      ++end;
    }
    if (begin < text.size()) {
      normalize_run(text.substr(begin, end - begin), form, out);
    }
    begin = std::min(end, text.size());
  }
  return out;
}

void append_lower(std::string& text, char32_t c) {
  if (c == 0x130) {  // the only character whose lower case has two: i with a dot above
    text += "i\xCC\x87";
    return;
  }
  append_utf8(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x85 ||
         has_category(c, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP);
}

bool is_number(char32_t c) { return has_category(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO); }

bool is_mark(char32_t c) { return has_category(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME); }

bool is_punctuation(char32_t c) {
  constexpr std::string_view kAsciiSymbols = "$+<=>^`|~";  // of the categories S*
  return has_category(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO) ||
         (c < 0x80 && kAsciiSymbols.find(static_cast<char>(c)) != std::string_view::npos);
}

}  // namespace shardwise::data
