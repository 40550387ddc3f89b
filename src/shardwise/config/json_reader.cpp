#include "shardwise/config/json_reader.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <limits>
#include <unordered_set>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/base/error.h"

namespace shardwise::config {
namespace {

// Note [Tokens that JSON lacks]
// Python writes inf and nan as the bare words Infinity, -Infinity and NaN. Before parsing they are
// replaced by strings of the same length, so that positions in messages stay right; the handler
// turns these strings back into numbers. A document that contains exactly these control characters
// as a string means the same number, which harms nobody.
constexpr std::string_view kInfinityWord = "Infinity";
constexpr std::string_view kInfinityMark = "\"\\u0001\"";
constexpr std::string_view kMinusInfinityWord = "-Infinity";
constexpr std::string_view kMinusInfinityMark = "\"\\u0002\" ";
constexpr std::string_view kNanWord = "NaN";
constexpr std::string_view kNanMark = "\"\x7f\"";
static_assert(kInfinityWord.size() == kInfinityMark.size());
static_assert(kMinusInfinityWord.size() == kMinusInfinityMark.size());
static_assert(kNanWord.size() == kNanMark.size());

std::string where(std::string_view text, std::size_t offset) {
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      ++column;
    }
  }
  return concat("line ", line, ", column ", column);
}

// Length of the UTF-8 sequence at `at`, 0 when it is not one (overlong forms and surrogates are
// not).
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    return follows(1) ? 2 : 0;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool overlong = lead == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = lead == 0xED && byte(1) > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool overlong = lead == 0xF0 && byte(1) < 0x90;
    const bool too_large = lead == 0xF4 && byte(1) > 0x8F;
    return follows(1) && follows(2) && follows(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

void check_bytes(std::string_view text, const std::string& source) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    SW_USER_CHECK(ConfigError, length > 0, source, ": byte ", at, " (", where(text, at),
                  ") is not UTF-8; save the document as UTF-8 text");
    SW_USER_CHECK(ConfigError, text[at] != '\0', source, ": byte ", at, " (", where(text, at),
                  ") is NUL; this is not JSON text");
    at += length;
  }
}

// Blanks comments and trailing commas and marks the bare words, keeping every byte position.
class Cleaner {
 public:
  explicit Cleaner(std::string_view text) : text_(text), out_(text) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (text_[at_] == '"') {
        skip_string();
      } else if (starts("//") || text_[at_] == '#') {
        blank_until(text_.find('\n', at_));
      } else if (starts("/*")) {
        const std::size_t end = text_.find("*/", at_ + 2);
        blank_until(end == std::string_view::npos ? end : end + 2);
      } else if (!mark(kMinusInfinityWord, kMinusInfinityMark) &&
                 !mark(kInfinityWord, kInfinityMark) && !mark(kNanWord, kNanMark)) {
        plain();
      }
    }
    return std::move(out_);
  }

 private:
  static constexpr std::size_t kNone = std::string_view::npos;

  bool starts(std::string_view word) const { return text_.substr(at_, word.size()) == word; }

  void skip_string() {
    comma_ = kNone;
    last_ = '"';
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      }
    }
    ++at_;
  }

  void blank_until(std::size_t end) {
    for (end = std::min(end, text_.size()); at_ < end; ++at_) {
      if (text_[at_] != '\n') {
        out_[at_] = ' ';
      }
    }
  }

  bool mark(std::string_view word, std::string_view replacement) {
    if (!starts(word)) {
      return false;
    }
    out_.replace(at_, word.size(), replacement);
    at_ += word.size();
    comma_ = kNone;
    last_ = '0';
    return true;
  }

  void plain() {
    const char c = text_[at_];
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
      ++at_;
      return;
    }
    if ((c == '}' || c == ']') && comma_ != kNone) {
      out_[comma_] = ' ';
    }
    const bool comma_after_value = c == ',' && last_ != ',' && last_ != '[' && last_ != '{';
    comma_ = comma_after_value ? at_ : kNone;
    last_ = c;
    ++at_;
  }

  std::string_view text_;
  std::string out_;
  std::size_t at_ = 0;
  std::size_t comma_ = kNone;  // a comma after which nothing has come yet
  char last_ = '{';            // last character that is no space or comment
};

// Where the parser, which does not tell, stands in the text. It reads each character once.
struct Reading {
  const char* at = nullptr;
  const char* counted = nullptr;  // up to here line breaks are in `line`
  std::size_t line = 1;

  std::size_t present_line() {
    line += static_cast<std::size_t>(std::count(counted, at, '\n'));
    counted = at;
    return line;
  }
};

// Input of the parser that moves a Reading on.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, Reading* reading) : at_(at), reading_(reading) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    reading_->at = ++at_;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }
  bool operator!=(const Cursor& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  Reading* reading_;
};

// Builds a Value from the parser's events.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view text, const std::string& source, std::vector<std::string>* duplicates,
          KeyLines* lines, Reading& reading)
      : text_(text), source_(source), duplicates_(duplicates), lines_(lines), reading_(reading) {}

  bool null() override { return put(Value::null()); }
  bool boolean(bool value) override { return put(Value::of(value)); }
  bool number_integer(number_integer_t value) override { return put(Value::of(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    constexpr auto kMost = static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max());
    return put(value <= kMost ? Value::of(static_cast<std::int64_t>(value))
                              : Value::of(static_cast<double>(value)));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return put(Value::of(value));
  }
  bool string(string_t& value) override {
    if (value.size() == 1 && (value[0] == '\x01' || value[0] == '\x02' || value[0] == '\x7f')) {
      const double infinity = std::numeric_limits<double>::infinity();
      return put(Value::of(value[0] == '\x01'   ? infinity
                           : value[0] == '\x02' ? -infinity
                                                : std::numeric_limits<double>::quiet_NaN()));
    }
    return put(Value::of(std::move(value)));
  }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*elements*/) override { return open(Value::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(Value::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    if (!stack_.back().seen.insert(value).second) {
      duplicates_->push_back(concat(path_to(visible(value)), ": the key \"", visible(value),
                                    "\" is given twice in the same object; keep one of them"));
    }
    if (lines_ != nullptr) {
      (*lines_)[path_to(visible(value))] = reading_.present_line();
    }
    stack_.back().key = std::move(value);
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: what it is"
    std::string what = error.what();
    const std::size_t detail = what.find(": ");
    const bool out_of_range = error.id == 406;
    what = detail == std::string::npos ? what : what.substr(detail + 2);
    const std::size_t offset = position > 0 ? position - 1 : 0;
    if (out_of_range) {
      SW_FAIL(ConfigError, source_, " (", where(text_, offset),
              "): a number is too large for a 64-bit float; write a smaller one");
    }
    SW_FAIL(ConfigError, source_, " (", where(text_, offset), ") is not valid JSON: ", what);
  }

  Value take() { return std::move(root_); }

 private:
  struct Level {
    Value value;
    std::string key;
    std::unordered_set<std::string> seen;
  };

  std::string path_to(const std::string& last) const {
    std::string path;
    for (std::size_t i = 0; i + 1 < stack_.size(); ++i) {
      const Level& level = stack_[i];
      path +=
          level.value.is_array() ? concat("[", level.value.items.size(), "]") : visible(level.key);
      path += stack_[i + 1].value.is_array() ? "" : ".";
    }
    return path + last;
  }

  bool open(Value value) {
    SW_USER_CHECK(ConfigError, static_cast<int>(stack_.size()) < kMaxJsonDepth, source_,
                  ": lists and objects are nested more than ", kMaxJsonDepth,
                  " deep; no key of the configuration is");
    stack_.push_back({std::move(value), "", {}});
    return true;
  }

  bool close() {
    Value done = std::move(stack_.back().value);
    stack_.pop_back();
    return put(std::move(done));
  }

  bool put(Value value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().value.is_array()) {
      stack_.back().value.items.push_back(std::move(value));
    } else {
      // A second member of the same name is reported, so which one stays does not matter.
      stack_.back().value.members.emplace_back(stack_.back().key, std::move(value));
    }
    return true;
  }

  std::string_view text_;
  const std::string& source_;
  std::vector<std::string>* duplicates_;
  KeyLines* lines_;
  Reading& reading_;
  std::vector<Level> stack_;
  Value root_;
};

}  // namespace

bool is_utf8(std::string_view text) {
  std::size_t at = 0;
  for (std::size_t length = 1; at < text.size() && length > 0; at += length) {
    length = utf8_length(text, at);
  }
  return at >= text.size();
}

Value parse_json(std::string_view text, const std::string& source,
                 std::vector<std::string>* duplicates, KeyLines* lines) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    text.remove_prefix(kByteOrderMark.size());
  }
  SW_USER_CHECK(ConfigError, text.size() <= kMaxJsonBytes, source, " has ", text.size(),
                " bytes; a configuration has at most ", kMaxJsonBytes);
  check_bytes(text, source);
  const std::string clean = Cleaner(text).run();
  SW_USER_CHECK(ConfigError, clean.find_first_not_of(" \t\r\n") != std::string::npos, source,
                " is empty; the least that works is {\"train_batch_size\": 8}");
  const char* const begin = clean.data();
  Reading reading{begin, begin};
  Builder builder(text, source, duplicates, lines, reading);
  nlohmann::json::sax_parse(Cursor(begin, &reading), Cursor(begin + clean.size(), &reading),
                            &builder);
  return builder.take();
}

}  // namespace shardwise::config
