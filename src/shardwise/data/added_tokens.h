// The "added_tokens" of a tokenizer.json: texts that become one token before anything else is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardwise/data/bpe_model.h"
#include "shardwise/data/normalizer.h"
#include "shardwise/data/pattern.h"
#include "shardwise/data/trie.h"
#include "shardwise/io/json_view.h"

namespace shardwise::data {

struct AddedToken {
  std::string content;
  std::string decoded;  // what it stands for in decode(): normalized where that is looked for
  std::uint32_t id = 0;
  bool single_word = false;             // only where no word character touches it
  bool lstrip = false, rstrip = false;  // takes the white space beside it
  bool normalized = false;              // is looked for in normalized text
  bool special = false;                 // left out by decode() on request
};

// Immutable; safe to use from several threads.
class AddedTokens {
 public:
  // Throws DataError also where ids are not those that Hugging Face's reader gives: the id of the
  // model's token of this text, else the next one behind the model's and those added before.
  AddedTokens(const io::JsonView& view, const BpeModel& model, const Normalizer* normalizer);

  // A stretch of text, or the token that stands for it.
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::optional<std::uint32_t> token;
  };

  // Cuts text at the tokens that are looked for in it as it is, or in normalized text.
  std::vector<Part> split_raw(std::string_view text) const { return split(text, raw_); }
  std::vector<Part> split_normalized(std::string_view text) const {
    return split(text, normalized_);
  }

  const AddedToken* find(std::uint32_t id) const;
  const AddedToken* find(std::string_view content) const;
  std::uint32_t highest_id() const;  // 0 without a token

 private:
  void check_id(const io::JsonView& view, const AddedToken& token, const BpeModel& model) const;
  void build(const Normalizer* normalizer, const io::JsonView& view);
  std::vector<Part> split(std::string_view text, const Trie& trie) const;
  bool touches_word(std::string_view text, const Part& found) const;

  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, std::size_t, Hash, std::equal_to<>> by_content_;
  std::unordered_map<std::uint32_t, std::size_t> by_id_;
  Trie raw_, normalized_;
  std::unique_ptr<const Pattern> word_;
};

}  // namespace shardwise::data
