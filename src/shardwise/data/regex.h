// Regular expressions of PCRE2 on UTF-8, compiled to machine code where that is possible.
//
// Note [No search without end]: backtracking may take exponential time. Each search may take a
// number of steps that grows with the text (PCRE2's match limit), and all searches of one text
// together an amount of processor time that grows with it, far beyond what tokenizers need; then
// DataError is thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::data {

// Immutable; safe to use from several threads.
class Regex {
 public:
  // In PCRE2's syntax; ^ and $ are about lines, "." excludes \n. `where` ("file: field") starts the
  // errors. Throws DataError for what PCRE2 refuses.
  Regex(const std::string& expression, std::string where);

  struct Span {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  class Search;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

// The matches in one text, as Oniguruma's iterator gives them: one behind the other, no empty match
// right behind another match.
class Regex::Search {
 public:
  // Both must outlive the search; the text must be valid UTF-8.
  Search(const Regex& regex, std::string_view text);
  ~Search();
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // Throws DataError, see Note [No search without end].
  std::optional<Span> next();

 private:
  struct State;

  std::optional<Span> search(std::size_t from);
  void check_time();

  const Regex& regex_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::optional<std::size_t> last_end_;
  std::unique_ptr<State> state_;
};

}  // namespace shardwise::data
