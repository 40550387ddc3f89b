#include "shardwise/data/onig_syntax.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/data/unicode_names.h"
#include "shardwise/io/quote.h"

namespace shardwise::data {
namespace {

constexpr std::string_view kHexClass = "0-9a-fA-F";
// Oniguruma takes these for parts of words outside of brackets only.
constexpr std::string_view kLatin1Words = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// What one escape or POSIX bracket stands for: a set of characters, as the inside of brackets.
struct Set {
  std::string body;
  bool negated = false;
  bool is_class = true;  // not a single character, which may begin or end a range
};

std::string in_brackets(const Set& set) { return (set.negated ? "[^" : "[") + set.body + "]"; }

class Translator {
 public:
  Translator(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  std::string translate() {
    while (at_ < text_.size()) {
      element();
    }
    SW_USER_CHECK(DataError, caseless_.size() == 1, where_, ": a ( is not closed");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    SW_FAIL(DataError, where_, ": ", what, " at byte ", at_, " of ", io::quoted(text_),
            " is not supported in a pattern");
  }

  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool next_is(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool take(std::string_view word) {
    if (!next_is(word)) return false;
    at_ += word.size();
    return true;
  }

  void element() {
    switch (peek()) {
      case '\\': escape(); break;
      case '[': ++at_, out_ += bracket(0); break;
      case '(': group(); break;
      case ')': close(); break;
      case '{': interval(); break;
      default: out_ += text_[at_++]; break;
    }
  }

  void close() {
    if (caseless_.size() == 1) refuse("a ) without (");
    caseless_.pop_back();
    ++at_;
    out_ += ')';
  }

  void group() {
    for (const std::string_view kept : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (take(kept)) {
        out_ += kept;
        caseless_.push_back(caseless_.back());
        return;
      }
    }
    if (next_is("(?")) {
      options();
    } else if (take("(")) {
      out_ += "(?:";  // nothing refers to what a group caught
      caseless_.push_back(caseless_.back());
    }
  }

  // (?i:, (?m-i: and, in front of everything, (?i).
  void options() {
    const bool in_front = at_ == 0;
    const std::size_t begin = at_;
    at_ += 2;
    bool caseless = caseless_.back();
    bool on = true;
    std::string letters;
    for (; peek() == 'i' || peek() == 'm' || peek() == '-'; ++at_) {
      on = on && peek() != '-';
      caseless = peek() == 'i' ? on : caseless;
      letters += peek() == 'm' ? 's' : peek();
    }
    if (take(":")) {
      caseless_.push_back(caseless);
      out_ += "(?" + letters + ":";
    } else if (in_front && take(")")) {
      caseless_.back() = caseless;
      out_ += "(?" + letters + ")";
    } else {
      at_ = begin;
      refuse("this kind of group");
    }
  }

  std::string digits() {
    std::string found;
    while (std::isdigit(static_cast<unsigned char>(peek()))) found += text_[at_++];
    return found;
  }

  void interval() {
    const std::size_t begin = at_++;
    const std::string low = digits();
    const bool comma = take(",");
    const std::string high = comma ? digits() : "";
    if (!take("}") || (low.empty() && high.empty())) {
      at_ = begin + 1;
      out_ += "\\{";  // no repetition: a character
      return;
    }
    if (peek() == '+' || (!comma && peek() == '?')) refuse("a repetition of a repetition");
    out_ += "{" + (low.empty() ? "0" : low) + (comma ? "," : "") + high + "}";
  }

  // An escape outside of brackets.
  void escape() {
    const char letter = peek(1);
    if (letter == 'b' || letter == 'B') {
      at_ += 2;
      const std::string word = "[" + std::string(kWordClass) + std::string(kLatin1Words) + "]";
      const std::string both = "(?<=" + word + ")(?" + (letter == 'b' ? "!" : "=") + word + ")";
      const std::string none = "(?<!" + word + ")(?" + (letter == 'b' ? "=" : "!") + word + ")";
      out_ += "(?:" + both + "|" + none + ")";
    } else if (letter == 'A' || letter == 'Z' || letter == 'z' || letter == 'G') {
      at_ += 2;
      out_ += std::string("\\") + letter;
    } else {
      Set set = escaped_set();
      if (letter == 'w' || letter == 'W') set.body += kLatin1Words;
      out_ += set.is_class ? in_brackets(set) : set.body;
    }
  }

  Set escaped_set() {
    const char letter = peek(1);
    switch (letter) {
      case 's': return at_ += 2, Set{std::string(kSpaceClass)};
      case 'S': return at_ += 2, Set{std::string(kSpaceClass), true};
      case 'w': return at_ += 2, Set{std::string(kWordClass)};
      case 'W': return at_ += 2, Set{std::string(kWordClass), true};
      case 'd': return at_ += 2, Set{"\\p{Nd}"};
      case 'D': return at_ += 2, Set{"\\p{Nd}", true};
      case 'h': return at_ += 2, Set{std::string(kHexClass)};
      case 'H': return at_ += 2, Set{std::string(kHexClass), true};
      case 'v': return at_ += 2, Set{"\\x0b", false, false};
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e': return at_ += 2, Set{std::string("\\") + letter, false, false};
      case 'x':
      case 'u': return code_point();
      case 'p':
      case 'P': return property();
      default: break;
    }
    // Any other character that is no letter or digit stands for itself.
    if (letter == '\0' || std::isalnum(static_cast<unsigned char>(letter)) ||
        static_cast<unsigned char>(letter) >= 0x80) {
      refuse("this escape");
    }
    at_ += 2;
    return {std::string("\\") + letter, false, false};
  }

  // \xHH, \x{H...}, \uHHHH.
  Set code_point() {
    const bool is_u = peek(1) == 'u';
    const bool braces = !is_u && peek(2) == '{';
    const std::size_t begin = at_ + (braces ? 3 : 2);
    const std::size_t most = braces ? 8 : is_u ? 4 : 2;
    std::size_t end = begin;
    while (end < text_.size() && end < begin + most &&
           std::isxdigit(static_cast<unsigned char>(text_[end]))) {
      ++end;
    }
    const std::string hex(text_.substr(begin, end - begin));
    const bool ends_well = !braces || (end < text_.size() && text_[end] == '}');
    if (hex.empty() || (is_u && hex.size() != 4) || !ends_well) refuse("this escape");
    if (!is_u && !braces && hex.size() == 2 && hex[0] >= '8') refuse("a raw byte");
    at_ = end + (braces ? 1 : 0);
    return {"\\x{" + hex + "}", false, false};
  }

  // \p{name}, \p{^name}, \P{name}.
  Set property() {
    const std::size_t end = text_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse("this escape");
    std::string_view name = text_.substr(at_ + 3, end - at_ - 3);
    bool negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    Set set = named(name);
    set.negated = negated;
    at_ = end + 1;
    return set;
  }

  Set named(std::string_view name) const {
    const NamedSet set = find_named_set(name);
    if (set.body.empty()) refuse("this property");
    if (set.cased && caseless_.back()) refuse("a property of case where case is ignored");
    return {set.body};
  }

  // [:name:] and [:^name:], whose [ has been seen but not taken.
  Set posix() {
    const std::size_t end = text_.find(":]", at_ + 2);
    if (end == std::string_view::npos) refuse("this bracket");
    std::string_view name = text_.substr(at_ + 2, end - at_ - 2);
    const bool negated = name.starts_with('^');
    name.remove_prefix(negated ? 1 : 0);
    Set set = named(name);
    set.negated = negated;
    at_ = end + 2;
    return set;
  }

  // One operand of an intersection inside brackets: plain members, and whole classes, each of which
  // matches one character.
  struct Operand {
    std::string body;
    std::vector<std::string> classes;

    std::string text() const {
      if (classes.empty()) return "[" + body + "]";
      std::string all = body.empty() ? "" : "[" + body + "]";
      for (const std::string& one : classes) all += (all.empty() ? "" : "|") + one;
      return "(?:" + all + ")";
    }
    bool empty() const { return body.empty() && classes.empty(); }
  };

  // A bracket behind its [; returns what matches one character of it.
  std::string bracket(int depth) {
    if (depth > 16) refuse("so deep a bracket");
    const bool negated = take("^");
    if (peek() == ']') refuse("a ] in front");
    std::vector<Operand> operands(1);
    bool after_class = true;  // a - here is a character
    while (!take("]")) {
      if (at_ >= text_.size()) refuse("an open bracket");
      if (take("&&")) {
        operands.emplace_back();
        after_class = true;
      } else {
        after_class = member(operands.back(), after_class, depth);
      }
    }
    for (const Operand& operand : operands) {
      if (operand.empty()) refuse("an empty bracket");
    }
    return joined(operands, negated);
  }

  static std::string joined(const std::vector<Operand>& operands, bool negated) {
    if (operands.size() == 1 && operands[0].classes.empty()) {
      return (negated ? "[^" : "[") + operands[0].body + "]";
    }
    std::string all;
    for (std::size_t i = 0; i + 1 < operands.size(); ++i) {
      all += "(?=" + operands[i].text() + ")";
    }
    all += operands.back().text();
    return negated ? "(?:(?!" + all + ")(?s:.))" : "(?:" + all + ")";
  }

  // Takes one member; says whether it was a class.
  bool member(Operand& operand, bool after_class, int depth) {
    const char c = peek();
    if (c == '[' && peek(1) != ':') {
      ++at_;
      operand.classes.push_back(bracket(depth + 1));
      return true;
    }
    if (c == '-') return hyphen(operand, after_class);
    if (c != '\\' && c != '[') {
      operand.body += c == '^' ? "\\^" : std::string(1, c);
      ++at_;
      return false;
    }
    const Set set = c == '[' ? posix() : escaped_set();
    if (set.negated) {
      operand.classes.push_back(in_brackets(set));
    } else {
      operand.body += set.body;
    }
    return set.is_class;
  }

  // A range only between two single characters.
  bool hyphen(Operand& operand, bool after_class) {
    ++at_;
    const bool before_class =
        peek() == ']' || peek() == '[' || next_is("&&") ||
        (peek() == '\\' && std::string_view("sSwWdDhHpP").find(peek(1)) != std::string_view::npos);
    const bool literal = after_class || before_class;
    operand.body += literal ? "\\-" : "-";
    return literal;
  }

  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<bool> caseless_ = {false};  // one for each open group, and the whole
};

}  // namespace

std::string onig_to_pcre2(std::string_view expression, const std::string& where) {
  return Translator(expression, where).translate();
}

}  // namespace shardwise::data
