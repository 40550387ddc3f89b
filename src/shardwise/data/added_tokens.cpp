#include "shardwise/data/added_tokens.h"

#include <algorithm>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/data/tokenizer_fields.h"
#include "shardwise/data/unicode.h"
#include "shardwise/io/quote.h"

namespace shardwise::data {
namespace {

// The search takes, at each place, the time of the longest token.
constexpr std::size_t kMostBytes = 4096;

AddedToken read_token(const io::JsonView& view) {
  allow_only(view, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.content = view.at("content").string();
  token.id = static_cast<std::uint32_t>(view.at("id").integer(0, (std::int64_t{1} << 31) - 2));
  token.single_word = view.boolean_or("single_word", false);
  token.lstrip = view.boolean_or("lstrip", false);
  token.rstrip = view.boolean_or("rstrip", false);
  token.special = view.boolean_or("special", false);
  token.normalized = view.boolean_or("normalized", !token.special);
  if (token.content.size() > kMostBytes) {
    view.at("content").fail(
        concat("has ", token.content.size(), " bytes; ", kMostBytes, " are allowed"));
  }
  return token;
}

}  // namespace

AddedTokens::AddedTokens(const io::JsonView& view, const BpeModel& model,
                         const Normalizer* normalizer)
    : word_(make_word_characters()) {
  for (const io::JsonView& item : view.items()) {
    AddedToken token = read_token(item);
    if (token.content.empty()) continue;
    if (by_content_.contains(token.content)) item.at("content").fail("is there twice");
    check_id(item, token, model);
    by_content_.emplace(token.content, tokens_.size());
    by_id_.emplace(token.id, tokens_.size());
    tokens_.push_back(std::move(token));
  }
  build(normalizer, view);
}

void AddedTokens::check_id(const io::JsonView& view, const AddedToken& token,
                           const BpeModel& model) const {
  const auto size = static_cast<std::uint32_t>(model.size());
  const std::uint32_t next = tokens_.empty() ? size : std::max(size, highest_id() + 1);
  const std::uint32_t expected = model.find(token.content).value_or(next);
  if (token.id != expected) {
    view.at("id").fail(concat(token.id, " must be ", expected, " for ", io::quoted(token.content),
                              ": the id that the model has for it, or the next free one"));
  }
  if (by_id_.contains(token.id)) view.at("id").fail(concat(token.id, " is there twice"));
}

void AddedTokens::build(const Normalizer* normalizer, const io::JsonView& view) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    tokens_[i].decoded = tokens_[i].content;
    if (!tokens_[i].normalized) {
      raw_.add(tokens_[i].content, i);
      continue;
    }
    OwnedPiece piece{tokens_[i].content};
    if (normalizer != nullptr) normalizer->normalize(piece);
    const auto refuse = [&](const std::string& why) {
      view.fail(io::quoted(tokens_[i].content) + " is looked for in normalized text, where " + why);
    };
    if (piece.text.empty()) refuse("nothing is left of it; \"normalized\" must be false");
    const auto same = normalized_.find(piece.text, 0);
    if (same && same->begin == 0 && same->end == piece.text.size()) {
      refuse("it is the same as " + io::quoted(tokens_[same->value].content));
    }
    normalized_.add(piece.text, i);
    tokens_[i].decoded = std::move(piece.text);
  }
}

bool AddedTokens::touches_word(std::string_view text, const Part& found) const {
  const auto is_word = [&](std::string_view character) {
    bool matched = false;
    word_->find(character, [&](const Match& match) { matched = match.matched; });
    return matched;
  };
  const auto behind = text.substr(found.end);
  const auto before = text.substr(0, found.begin);
  return (!before.empty() &&
          is_word(before.substr(before.size() - last_code_point(before).bytes))) ||
         (!behind.empty() && is_word(behind.substr(0, first_code_point(behind).bytes)));
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, const Trie& trie) const {
  std::vector<Part> parts;
  std::size_t done = 0;
  for (auto found = trie.find(text, 0); found; found = trie.find(text, found->end)) {
    const AddedToken& token = tokens_[found->value];
    Part part{found->begin, found->end, token.id};
    if (token.single_word && touches_word(text, part)) continue;
    while (token.lstrip && part.begin > done) {
      const CodePoint last = last_code_point(text.substr(0, part.begin));
      if (!is_space(last.value)) break;
      part.begin -= last.bytes;
    }
    while (token.rstrip && part.end < text.size()) {
      const CodePoint first = first_code_point(text.substr(part.end));
      if (!is_space(first.value)) break;
      part.end += first.bytes;
    }
    if (done < part.begin) parts.push_back({done, part.begin, std::nullopt});
    parts.push_back(part);
    done = part.end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), std::nullopt});
  return parts;
}

const AddedToken* AddedTokens::find(std::uint32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

std::uint32_t AddedTokens::highest_id() const {
  std::uint32_t highest = 0;
  for (const AddedToken& token : tokens_) highest = std::max(highest, token.id);
  return highest;
}

}  // namespace shardwise::data
