// What cuts text: literal strings, classes of characters, regular expressions.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace shardwise::data {

// A stretch of a text, in bytes, that matched, or that lies between matches.
struct Match {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool matched = false;
};

using MatchSink = std::function<void(const Match&)>;

// Immutable; safe to use from several threads.
class Pattern {
 public:
  virtual ~Pattern() = default;
  // Gives the whole of `text` (valid UTF-8), in order: matches, leftmost first and not overlapping,
  // and what is not empty between them. Throws DataError when a regular expression takes too many
  // steps for the text.
  virtual void find(std::string_view text, const MatchSink& sink) const = 0;
};

// `text` as it stands; not empty.
std::unique_ptr<const Pattern> make_literal(std::string text);

// Each character of a class by itself.
std::unique_ptr<const Pattern> make_class(bool (*belongs)(char32_t));

// A regular expression in the syntax of Oniguruma, which tokenizer files use. `where` ("file:
// field") starts the errors. Throws DataError for what is no such expression, and for the few
// constructs that would mean something else here (see onig_syntax.h).
std::unique_ptr<const Pattern> make_regex(std::string_view expression, const std::string& where);

// Rust's \w+|[^\w\s]+, where a word holds joiners too.
std::unique_ptr<const Pattern> make_words();

// Each character of those words by itself.
std::unique_ptr<const Pattern> make_word_characters();

}  // namespace shardwise::data
