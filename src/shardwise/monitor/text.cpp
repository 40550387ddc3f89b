#include "shardwise/monitor/text.h"

#include <cstdint>
#include <cstdio>

namespace shardwise::monitor {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

struct Sequence {
  std::size_t size;  // bytes
  bool valid;
};

// Unicode standard, table 3-7: the second byte has a range of its own after some first bytes.
struct Lead {
  int more;  // bytes that follow; -1: no first byte
  std::uint8_t low, high;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {0, 0, 0};
  if (byte < 0xc2) return {-1, 0, 0};
  if (byte < 0xe0) return {1, 0x80, 0xbf};
  if (byte == 0xe0) return {2, 0xa0, 0xbf};
  if (byte == 0xed) return {2, 0x80, 0x9f};
  if (byte < 0xf0) return {2, 0x80, 0xbf};
  if (byte == 0xf0) return {3, 0x90, 0xbf};
  if (byte < 0xf4) return {3, 0x80, 0xbf};
  if (byte == 0xf4) return {3, 0x80, 0x8f};
  return {-1, 0, 0};
}

Sequence next_sequence(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
  const Lead lead = lead_of(byte(0));
  if (lead.more < 0) return {1, false};
  std::uint8_t low = lead.low, high = lead.high;
  for (std::size_t at = 1; at <= static_cast<std::size_t>(lead.more); ++at) {
    if (at == text.size() || byte(at) < low || byte(at) > high) return {at, false};
    low = 0x80;
    high = 0xbf;
  }
  return {static_cast<std::size_t>(lead.more) + 1, true};
}

// Hands the characters to `append` one by one.
template <typename Append>
std::string convert(std::string_view text, Append&& append) {
  std::string out;
  out.reserve(text.size() + 16);
  while (!text.empty()) {
    const Sequence sequence = next_sequence(text);
    append(out, sequence.valid ? text.substr(0, sequence.size) : kReplacement);
    text.remove_prefix(sequence.size);
  }
  return out;
}

// C0, delete, and C1 (U+0080 to U+009F).
bool control(std::string_view character) {
  const auto first = static_cast<std::uint8_t>(character[0]);
  if (first == 0xc2) return static_cast<std::uint8_t>(character[1]) < 0xa0;
  return (first < 0x20 && first != '\n' && first != '\t') || first == 0x7f;
}

// U+FFFE and U+FFFF: XML forbids them.
bool noncharacter(std::string_view character) {
  return character == "\xef\xbf\xbe" || character == "\xef\xbf\xbf";
}

void append_json(std::string& out, std::string_view character) {
  const char c = character[0];
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\t': out += "\\t"; return;
    case '\r': out += "\\r"; return;
    default: break;
  }
  if (static_cast<std::uint8_t>(c) >= 0x20) {
    out += character;
    return;
  }
  char escaped[8];
  std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
  out += escaped;
}

void append_html(std::string& out, std::string_view character) {
  switch (character[0]) {
    case '&': out += "&amp;"; return;
    case '<': out += "&lt;"; return;
    case '>': out += "&gt;"; return;
    case '"': out += "&quot;"; return;
    case '\'': out += "&#39;"; return;
    default: break;
  }
  out += control(character) || noncharacter(character) ? kReplacement : character;
}

}  // namespace

std::string json_string(std::string_view text) { return '"' + convert(text, append_json) + '"'; }

std::string html_text(std::string_view text) { return convert(text, append_html); }

std::string printable_text(std::string_view text) {
  return convert(text, [](std::string& out, std::string_view character) {
    out += control(character) ? kReplacement : character;
  });
}

std::string_view cut_text(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  const auto continues = [&](std::size_t at) {
    return (static_cast<std::uint8_t>(text[at]) & 0xc0) == 0x80;
  };
  // Continuation bytes that belong to no character are not a reason to cut more than three.
  for (int back = 0; back < 3 && bytes > 0 && continues(bytes); ++back) --bytes;
  return text.substr(0, bytes);
}

}  // namespace shardwise::monitor
