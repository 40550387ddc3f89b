// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::data {

// Immutable; safe to use from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::int64_t vocabulary_size() const = 0;  // every id is below it
  // Ids of UTF-8 text. Without special tokens, but for those that the text spells out where the
  // tokenizer file says so. Bytes that are no UTF-8 are taken as U+FFFD, unless it takes any bytes;
  // files are checked before (text_check.h).
  virtual std::vector<std::int64_t> encode(std::string_view text) const = 0;
  virtual bool takes_any_bytes() const { return false; }
  // The text of ids; throws DataError for an id outside of the vocabulary.
  virtual std::string decode(std::span<const std::int64_t> ids, bool skip_special) const = 0;
  // The token between documents, if there is one.
  virtual std::optional<std::int64_t> end_of_text() const = 0;
  // Tells tokenizers apart; never 0.
  virtual std::uint64_t fingerprint() const = 0;
};

// "bytes": one token a byte, 256 tokens, no end of text. Otherwise the path of a tokenizer.json
// with a BPE model, or of a folder that holds one. The end of text is "eos_token" of a
// tokenizer_config.json beside it, or else the first of the special tokens <|endoftext|>,
// <|end_of_text|>, </s> and <eos> that is there. Throws IoError or DataError that name file and
// field; whatever the file asks for and this reader lacks is an error, never ignored. `key` is
// where the user gave the name, for the error of a name that is no file.
std::shared_ptr<const Tokenizer> make_tokenizer(const std::string& name,
                                                const std::string& key = "tokenizer");

// Tokens of training.sample_prompt. Throws ConfigError for text that gives none; "" may.
std::vector<std::int64_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt);

}  // namespace shardwise::data
