#include "shardwise/data/bpe_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/data/tokenizer_fields.h"
#include "shardwise/data/unicode.h"
#include "shardwise/io/quote.h"

namespace shardwise::data {
namespace {

// Ids are at most this: they index a model's embedding.
constexpr std::int64_t kMostId = std::numeric_limits<std::int32_t>::max() - 1;

// "<0x0A>".
std::string byte_token(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

// Words that are kept: many texts repeat a few thousand. About 5 MB at most.
constexpr std::size_t kMostWords = 16'384;
constexpr std::size_t kMostWordBytes = 64;
// Code points whose tokens are looked up without hashing: all of the byte alphabet.
constexpr char32_t kCharacters = 0x200;

void check_dropout(const io::JsonView& view) {
  const auto dropout = view.find("dropout");
  if (dropout && dropout->number() != 0) {
    dropout->fail("is not supported; it must be null or 0");
  }
}

}  // namespace

BpeModel::BpeModel(const io::JsonView& view) {
  // Files of old versions leave out the type.
  if (view.has("type") && view.at("type").string() != "BPE") fail_type(view, "BPE");
  allow_only(view, {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                    "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  check_dropout(view);
  prefix_ = view.string_or("continuing_subword_prefix", "");
  suffix_ = view.string_or("end_of_word_suffix", "");
  fuse_unknown_ = view.boolean_or("fuse_unk", false);
  byte_fallback_ = view.boolean_or("byte_fallback", false);
  ignore_merges_ = view.boolean_or("ignore_merges", false);
  read_vocabulary(view.at("vocab"));
  read_merges(view.at("merges"));
  read_unknown(view);
}

void BpeModel::read_unknown(const io::JsonView& view) {
  if (const auto unknown = view.find("unk_token")) {
    unknown_ = unknown->string();
    unknown_place_ = place_of(*unknown);
    has_unknown_ = true;
  }
}

void BpeModel::read_vocabulary(const io::JsonView& view) {
  const auto members = view.members();
  vocabulary_.reserve(members.size());
  tokens_.reserve(members.size());
  for (const auto& [token, value] : members) {
    const auto id = static_cast<std::uint32_t>(value.integer(0, kMostId));
    const auto [entry, added] = vocabulary_.emplace(token, id);
    SW_CHECK(added, token);  // the reader refuses keys that are there twice
    if (!tokens_.emplace(id, &entry->first).second) {
      value.fail(concat("id ", id, " is that of ", io::quoted(*tokens_[id]), " too"));
    }
    highest_id_ = std::max(highest_id_, id);
  }
  if (vocabulary_.empty()) view.fail("holds no token");
  characters_.resize(kCharacters);
  for (char32_t c = 0; c < kCharacters; ++c) {
    std::string text;
    append_utf8(text, c);
    characters_[c] = find(text);
  }
}

void BpeModel::read_merges(const io::JsonView& view) {
  const auto& json = view.json();
  if (!json.is_array()) view.fail("must be a list of merges");
  merges_ = MergeTable(json.size());
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto& merge = json[i];
    if (merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      const std::size_t blank = text.find(' ');
      if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos) {
        view.items()[i].fail(io::quoted(text) + " must be two tokens with one blank between them");
      }
      add_merge(view, i, text.substr(0, blank), text.substr(blank + 1), rank++);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      add_merge(view, i, merge[0].get_ref<const std::string&>(),
                merge[1].get_ref<const std::string&>(), rank++);
    } else {
      view.items()[i].fail("must be \"left right\" or [left, right]");
    }
  }
}

void BpeModel::add_merge(const io::JsonView& merges, std::size_t index, std::string_view left,
                         std::string_view right, std::uint32_t rank) {
  const auto known = [&](std::string_view token) {
    const auto id = find(token);
    if (!id) merges.items()[index].fail(io::quoted(token) + " is not in the vocabulary");
    return *id;
  };
  const std::uint32_t left_id = known(left);
  const std::uint32_t right_id = known(right);
  if (right.size() < prefix_.size()) {
    merges.items()[index].fail(io::quoted(right) + " is shorter than continuing_subword_prefix");
  }
  const std::string merged = std::string(left) + std::string(right.substr(prefix_.size()));
  merges_.set(left_id, right_id, {rank, known(merged)});
}

std::optional<std::uint32_t> BpeModel::find(std::string_view token) const {
  const auto found = vocabulary_.find(token);
  return found == vocabulary_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* BpeModel::token(std::uint32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : found->second;
}

std::uint32_t BpeModel::unknown_id() const {
  const auto id = find(unknown_);
  SW_USER_CHECK(DataError, id.has_value(), unknown_place_, ": ", io::quoted(unknown_),
                " is not in the vocabulary, but the text has a character without a token");
  return *id;
}

// The tokens of the bytes, if each has one.
bool BpeModel::add_bytes(std::string_view text, Scratch& scratch) const {
  std::vector<std::uint32_t> ids;
  for (const char c : text) {
    const auto id = find(byte_token(static_cast<unsigned char>(c)));
    if (!id) return false;
    ids.push_back(*id);
  }
  for (const std::uint32_t id : ids) scratch.symbols_.push_back({id});
  return true;
}

std::optional<std::uint32_t> BpeModel::find_character(std::string_view text) const {
  const char32_t c = first_code_point(text).value;
  return c < kCharacters ? characters_[c] : find(text);
}

// One symbol a character; characters without a token become bytes, the unknown token, or nothing.
void BpeModel::read_symbols(std::string_view word, Scratch& scratch) const {
  std::vector<Scratch::Symbol>& made = scratch.symbols_;
  made.clear();
  bool pending = false;  // an unknown token that may grow
  const auto flush = [&] {
    if (pending) made.push_back({unknown_id()});
    pending = false;
  };
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t bytes = first_code_point(word.substr(at)).bytes;
    const std::string_view text = word.substr(at, bytes);
    const bool is_first = at == 0;
    at += bytes;
    const bool is_last = at == word.size();
    const bool affixed = (!is_first && !prefix_.empty()) || (is_last && !suffix_.empty());
    const std::string whole =
        affixed ? (is_first ? "" : prefix_) + std::string(text) + (is_last ? suffix_ : "") : "";
    if (const auto id = affixed ? find(whole) : find_character(text)) {
      flush();
      made.push_back({*id});
    } else if (byte_fallback_ && add_bytes(affixed ? whole : text, scratch)) {
      continue;  // an unknown token that is pending comes later, as in Hugging Face's code
    } else if (has_unknown_) {
      if (!fuse_unknown_) flush();
      pending = true;
    }
  }
  flush();
}

void BpeModel::Scratch::push(const Candidate& candidate) {
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end());
}

BpeModel::Scratch::Candidate BpeModel::Scratch::pop() {
  std::pop_heap(heap_.begin(), heap_.end());
  const Candidate top = heap_.back();
  heap_.pop_back();
  return top;
}

void BpeModel::merge(Scratch& scratch) const {
  const auto at = [&](std::int32_t i) -> Scratch::Symbol& {
    return scratch.symbols_[static_cast<std::size_t>(i)];
  };
  const auto consider = [&](std::int32_t left) {
    if (left < 0 || at(left).after < 0) return;
    const Merge* found = merges_.find(at(left).token, at(at(left).after).token);
    if (found != nullptr) scratch.push({found->rank, found->token, left});
  };
  const auto count = static_cast<std::int32_t>(scratch.symbols_.size());
  scratch.heap_.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    at(i).before = i - 1;
    at(i).after = i + 1 < count ? i + 1 : -1;
  }
  for (std::int32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!scratch.heap_.empty()) {
    const Scratch::Candidate top = scratch.pop();
    Scratch::Symbol& left = at(top.left);
    if (left.gone || left.after < 0) continue;
    Scratch::Symbol& right = at(left.after);
    const Merge* found = merges_.find(left.token, right.token);
    if (found == nullptr || found->token != top.token) continue;  // one of the two has changed
    left.token = top.token;
    right.gone = true;
    left.after = right.after;
    if (left.after >= 0) at(left.after).before = top.left;
    consider(left.before);
    consider(top.left);
  }
}

void BpeModel::tokenize(std::string_view word, Scratch& scratch,
                        std::vector<std::int64_t>& ids) const {
  if (ignore_merges_) {
    if (const auto id = find(word)) {
      ids.push_back(*id);
      return;
    }
  }
  if (const auto seen = scratch.seen_.find(word); seen != scratch.seen_.end()) {
    ids.insert(ids.end(), seen->second.begin(), seen->second.end());
    return;
  }
  SW_USER_CHECK(DataError, word.size() < std::size_t{1} << 31, "tokenizer: a word of ", word.size(),
                " bytes is too long; split the text into lines");
  read_symbols(word, scratch);
  merge(scratch);
  const std::size_t before = ids.size();
  for (const Scratch::Symbol& symbol : scratch.symbols_) {
    if (!symbol.gone) ids.push_back(symbol.token);
  }
  if (word.size() <= kMostWordBytes && scratch.seen_.size() < kMostWords) {
    scratch.seen_.emplace(
        std::string(word),
        std::vector<std::uint32_t>(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end()));
  }
}

}  // namespace shardwise::data
