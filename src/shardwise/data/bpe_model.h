// The "model" of a tokenizer.json: byte-pair encoding of words.
//
// Source: Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units",
// ACL 2016; ranks and ties as Hugging Face's tokenizers does them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardwise/data/merge_table.h"
#include "shardwise/io/json_view.h"

namespace shardwise::data {

// Immutable; safe to use from several threads.
class BpeModel {
 public:
  // Throws DataError for a model of another type, merges that lack a token, and dropout.
  explicit BpeModel(const io::JsonView& view);

  // Memory that one call of tokenize() leaves to the next, with the ids of short words that were
  // seen; for one thread and one model.
  class Scratch;

  // Appends the ids of a word, in time n log n. Throws DataError for a character that has no token
  // where the file names an unknown token that does not exist.
  void tokenize(std::string_view word, Scratch& scratch, std::vector<std::int64_t>& ids) const;

  std::size_t size() const { return vocabulary_.size(); }  // tokens
  std::optional<std::uint32_t> find(std::string_view token) const;
  // Null for an id without a token.
  const std::string* token(std::uint32_t id) const;
  std::uint32_t highest_id() const { return highest_id_; }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  using Vocabulary = std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>>;

  void read_vocabulary(const io::JsonView& view);
  void read_merges(const io::JsonView& view);
  void read_unknown(const io::JsonView& view);
  void add_merge(const io::JsonView& merges, std::size_t index, std::string_view left,
                 std::string_view right, std::uint32_t rank);
  void read_symbols(std::string_view word, Scratch& scratch) const;
  std::optional<std::uint32_t> find_character(std::string_view text) const;
  bool add_bytes(std::string_view text, Scratch& scratch) const;
  std::uint32_t unknown_id() const;
  void merge(Scratch& scratch) const;

  Vocabulary vocabulary_;
  std::unordered_map<std::uint32_t, const std::string*> tokens_;
  std::vector<std::optional<std::uint32_t>> characters_;  // tokens of the first code points
  std::uint32_t highest_id_ = 0;
  MergeTable merges_{0};
  std::string prefix_, suffix_;  // continuing_subword_prefix, end_of_word_suffix
  std::string unknown_, unknown_place_;
  bool has_unknown_ = false;
  bool byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
};

class BpeModel::Scratch {
 private:
  friend class BpeModel;

  // A token of a word, in a list in which merged ones are skipped.
  struct Symbol {
    std::uint32_t token = 0;
    std::int32_t before = -1, after = -1;  // -1: none
    bool gone = false;
  };

  // A merge that may be done, unless one of its symbols has changed since.
  struct Candidate {
    std::uint32_t rank;
    std::uint32_t token;
    std::int32_t left;

    // The top of a heap is the one with the lowest rank, of these the one furthest left.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  void push(const Candidate& candidate);
  Candidate pop();

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::unordered_map<std::string, std::vector<std::uint32_t>, Hash, std::equal_to<>> seen_;
};

}  // namespace shardwise::data
