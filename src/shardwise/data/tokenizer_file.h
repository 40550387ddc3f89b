// Hugging Face's tokenizer.json with a BPE model, as the library `tokenizers` reads it.
//
// encode() is encode(text, add_special_tokens=False) of that library: no token of a post-processor
// is added. What the text spells of the added tokens becomes those tokens. A file that asks for
// something that is missing here is refused.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/data/added_tokens.h"
#include "shardwise/data/bpe_model.h"
#include "shardwise/data/decoder.h"
#include "shardwise/data/normalizer.h"
#include "shardwise/data/pre_tokenizer.h"
#include "shardwise/data/tokenizer.h"

namespace shardwise::data {

class FileTokenizer : public Tokenizer {
 public:
  // `text` is the document, `source` its file's name for errors. `end_of_text` names the token
  // between documents; "": the first of the usual names that is a special token of the file.
  FileTokenizer(std::string_view text, const std::string& source, const std::string& end_of_text);

  std::int64_t vocabulary_size() const override { return vocabulary_size_; }
  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int64_t> ids, bool skip_special) const override;
  std::optional<std::int64_t> end_of_text() const override { return end_of_text_; }
  std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  void read_added_tokens(const io::JsonView& document);
  void find_end_of_text(const std::string& name);
  // What one call of encode() works with.
  struct Run {
    BpeModel::Scratch scratch;
    std::vector<std::int64_t> ids;
  };

  void encode_normalized(const Piece& piece, Run& run) const;
  void encode_words(const Piece& piece, Run& run) const;

  std::string source_;
  std::unique_ptr<const Normalizer> normalizer_;       // null: text stays as it is
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;  // null: text is one word
  std::unique_ptr<const BpeModel> model_;
  std::unique_ptr<const AddedTokens> added_;
  std::unique_ptr<const Decoder> decoder_;  // null: tokens are joined with blanks
  std::int64_t vocabulary_size_ = 0;
  std::optional<std::int64_t> end_of_text_;
  std::uint64_t fingerprint_ = 0;
};

// Reads a tokenizer.json, or the one in a folder. tokenizer_config.json beside it may name the end
// of text ("eos_token"). Throws IoError or DataError, which names file and field.
std::shared_ptr<const Tokenizer> read_tokenizer_file(const std::string& path);

}  // namespace shardwise::data
