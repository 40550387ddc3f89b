// Finds the longest of many words at each place of a text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shardwise::data {

// Built once, then immutable.
class Trie {
 public:
  // `word` is not empty. A word that is there already keeps its first value.
  void add(std::string_view word, std::size_t value);

  struct Found {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t value = 0;
  };

  // The leftmost word at `from` or behind; of those that begin there, the longest. Takes at each
  // place the time of the longest word.
  std::optional<Found> find(std::string_view text, std::size_t from) const;

 private:
  struct Node {
    std::unordered_map<unsigned char, std::size_t> next;
    std::optional<std::size_t> value;
  };

  std::optional<Found> longest_at(std::string_view text, std::size_t begin) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> begins_{};  // bytes that a word begins with
};

}  // namespace shardwise::data
