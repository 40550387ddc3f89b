#include "shardwise/data/trie.h"

#include "shardwise/base/check.h"

namespace shardwise::data {

void Trie::add(std::string_view word, std::size_t value) {
  SW_CHECK(!word.empty());
  begins_[static_cast<unsigned char>(word.front())] = true;
  std::size_t node = 0;
  for (const char c : word) {
    const auto [entry, added] =
        nodes_[node].next.emplace(static_cast<unsigned char>(c), nodes_.size());
    node = entry->second;
    if (added) nodes_.emplace_back();
  }
  if (!nodes_[node].value) nodes_[node].value = value;
}

std::optional<Trie::Found> Trie::longest_at(std::string_view text, std::size_t begin) const {
  std::optional<Found> found;
  std::size_t node = 0;
  for (std::size_t at = begin; at < text.size(); ++at) {
    const auto next = nodes_[node].next.find(static_cast<unsigned char>(text[at]));
    if (next == nodes_[node].next.end()) break;
    node = next->second;
    if (nodes_[node].value) found = Found{begin, at + 1, *nodes_[node].value};
  }
  return found;
}

std::optional<Trie::Found> Trie::find(std::string_view text, std::size_t from) const {
  if (nodes_.size() == 1) return std::nullopt;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    if (const auto found = longest_at(text, begin)) return found;
  }
  return std::nullopt;
}

}  // namespace shardwise::data
