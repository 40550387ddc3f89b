#include "shardwise/data/pattern.h"

#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/data/onig_syntax.h"
#include "shardwise/data/regex.h"
#include "shardwise/data/unicode.h"

namespace shardwise::data {
namespace {

class Literal : public Pattern {
 public:
  explicit Literal(std::string text) : text_(std::move(text)) {}

  void find(std::string_view text, const MatchSink& sink) const override {
    std::size_t begin = 0;
    for (std::size_t at = text.find(text_); at != std::string_view::npos;
         at = text.find(text_, begin)) {
      if (begin < at) sink({begin, at, false});
      begin = at + text_.size();
      sink({at, begin, true});
    }
    if (begin < text.size()) sink({begin, text.size(), false});
  }

 private:
  std::string text_;
};

class CharacterClass : public Pattern {
 public:
  explicit CharacterClass(bool (*belongs)(char32_t)) : belongs_(belongs) {}

  void find(std::string_view text, const MatchSink& sink) const override {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint next = first_code_point(text.substr(at));
      const std::size_t end = at + next.bytes;
      if (belongs_(next.value)) {
        if (begin < at) sink({begin, at, false});
        sink({at, end, true});
        begin = end;
      }
      at = end;
    }
    if (begin < text.size()) sink({begin, text.size(), false});
  }

 private:
  bool (*belongs_)(char32_t);
};

class RegexPattern : public Pattern {
 public:
  explicit RegexPattern(Regex regex) : regex_(std::move(regex)) {}

  void find(std::string_view text, const MatchSink& sink) const override {
    std::size_t begin = 0;
    Regex::Search search(regex_, text);
    while (const auto match = search.next()) {
      if (begin < match->begin) sink({begin, match->begin, false});
      sink({match->begin, match->end, true});
      begin = match->end;
    }
    if (begin < text.size()) sink({begin, text.size(), false});
  }

 private:
  Regex regex_;
};

// \w of Rust's regular expressions (UTS 18, annex C).
constexpr const char* kRustWordClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d})";

}  // namespace

std::unique_ptr<const Pattern> make_literal(std::string text) {
  SW_CHECK(!text.empty());
  return std::make_unique<Literal>(std::move(text));
}

std::unique_ptr<const Pattern> make_class(bool (*belongs)(char32_t)) {
  return std::make_unique<CharacterClass>(belongs);
}

std::unique_ptr<const Pattern> make_regex(std::string_view expression, const std::string& where) {
  return std::make_unique<RegexPattern>(Regex(onig_to_pcre2(expression, where), where));
}

std::unique_ptr<const Pattern> make_words() {
  const std::string word = kRustWordClass;
  const std::string other = "[^" + word + std::string(kSpaceClass) + "]+";
  return std::make_unique<RegexPattern>(Regex("[" + word + "]+|" + other, "words"));
}

std::unique_ptr<const Pattern> make_word_characters() {
  return std::make_unique<RegexPattern>(Regex("[" + std::string(kRustWordClass) + "]", "words"));
}

}  // namespace shardwise::data
