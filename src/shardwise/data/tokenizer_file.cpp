#include "shardwise/data/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/base/hash.h"
#include "shardwise/data/tokenizer_fields.h"
#include "shardwise/data/unicode.h"
#include "shardwise/io/atomic_file.h"
#include "shardwise/io/json_view.h"
#include "shardwise/io/quote.h"

namespace shardwise::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

// Taken, in this order, where nothing names the end of text: GPT-2, StarCoder, Phi and Qwen;
// Llama 3; Llama 2 and Mistral; Gemma.
constexpr std::array<std::string_view, 4> kUsualEnds = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                                                        "<eos>"};

// Post-processors add special tokens or change offsets, neither of which encode() does.
void check_post_processor(const io::JsonView& view) {
  const std::string type = view.at("type").string();
  if (type == "Sequence") {
    for (const io::JsonView& part : view.at("processors").items()) check_post_processor(part);
    return;
  }
  constexpr std::array<std::string_view, 4> kKnown = {"ByteLevel", "TemplateProcessing",
                                                      "RobertaProcessing", "BertProcessing"};
  if (std::ranges::find(kKnown, type) == kKnown.end()) {
    fail_type(view, "Sequence, ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing");
  }
}

void check_document(const io::JsonView& document) {
  allow_only(document, {"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"});
  if (const auto version = document.find("version"); version && version->string() != "1.0") {
    version->fail(io::quoted(version->string()) + " is not supported; it must be \"1.0\"");
  }
  for (const char* key : {"truncation", "padding"}) {
    if (const auto asked = document.find(key)) {
      asked->fail("is not supported; it must be null, as texts are taken whole");
    }
  }
  if (const auto view = document.find("post_processor")) check_post_processor(*view);
}

// "eos_token": a string, or an object with the string as "content".
std::string configured_end(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  std::error_code error;
  if (!fs::exists(path, error)) return "";
  const auto end = io::JsonView::read(path.string()).find("eos_token");
  if (!end) return "";
  return end->is_object() ? end->at("content").string() : end->string();
}

}  // namespace

FileTokenizer::FileTokenizer(std::string_view text, const std::string& source,
                             const std::string& end_of_text)
    : source_(source) {
  const io::JsonView document = io::JsonView::parse(text, source, {.bytes = kMostBytes});
  check_document(document);
  model_ = std::make_unique<const BpeModel>(document.at("model"));
  if (const auto view = document.find("normalizer")) normalizer_ = make_normalizer(*view);
  if (const auto view = document.find("pre_tokenizer")) pre_tokenizer_ = make_pre_tokenizer(*view);
  if (const auto view = document.find("decoder")) decoder_ = make_decoder(*view);
  read_added_tokens(document);
  vocabulary_size_ = std::int64_t{std::max(model_->highest_id(), added_->highest_id())} + 1;
  find_end_of_text(end_of_text);
  fingerprint_ = hash_bytes(text.data(), text.size());
  const std::int64_t end = end_of_text_.value_or(-1);
  fingerprint_ = std::max<std::uint64_t>(1, hash_bytes(&end, sizeof(end), fingerprint_));
}

void FileTokenizer::read_added_tokens(const io::JsonView& document) {
  const auto view = document.find("added_tokens");
  added_ = std::make_unique<const AddedTokens>(view ? *view : io::JsonView::parse("[]", source_),
                                               *model_, normalizer_.get());
}

void FileTokenizer::find_end_of_text(const std::string& name) {
  if (name.empty()) {
    for (const std::string_view usual : kUsualEnds) {
      const AddedToken* token = added_->find(usual);
      if (token != nullptr && token->special) {
        end_of_text_ = token->id;
        return;
      }
    }
    return;
  }
  const AddedToken* token = added_->find(name);
  const auto id = token != nullptr ? std::optional(token->id) : model_->find(name);
  SW_USER_CHECK(DataError, id.has_value(), source_, ": the end of text ", io::quoted(name),
                ", which tokenizer_config.json names as eos_token, is not in the vocabulary");
  end_of_text_ = *id;
}

std::vector<std::int64_t> FileTokenizer::encode(std::string_view text) const {
  std::string repaired;
  if (valid_utf8_prefix(text) != text.size()) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  Run run;
  if (text.empty()) return run.ids;
  const Piece whole{text, first_code_point(text).bytes};
  for (const AddedTokens::Part& part : added_->split_raw(text)) {
    if (part.token) {
      run.ids.push_back(*part.token);
      continue;
    }
    const Piece piece = whole.part(part.begin, part.end);
    if (normalizer_ == nullptr) {
      encode_normalized(piece, run);
      continue;
    }
    OwnedPiece normalized{std::string(piece.text), piece.origin};
    normalizer_->normalize(normalized);
    encode_normalized(normalized.view(), run);
  }
  return std::move(run.ids);
}

void FileTokenizer::encode_normalized(const Piece& piece, Run& run) const {
  for (const AddedTokens::Part& part : added_->split_normalized(piece.text)) {
    if (part.token) {
      run.ids.push_back(*part.token);
    } else {
      encode_words(piece.part(part.begin, part.end), run);
    }
  }
}

void FileTokenizer::encode_words(const Piece& piece, Run& run) const {
  const auto encode_word = [&](const Piece& word) {
    model_->tokenize(word.text, run.scratch, run.ids);
  };
  if (pre_tokenizer_ == nullptr) {
    encode_word(piece);
  } else {
    pre_tokenizer_->split(piece, encode_word);
  }
}

std::string FileTokenizer::decode(std::span<const std::int64_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const std::int64_t id : ids) {
    SW_USER_CHECK(DataError, id >= 0 && id < vocabulary_size_, source_, ": token id ", id,
                  " is outside of the vocabulary; ids run from 0 to ", vocabulary_size_ - 1);
    const auto known = static_cast<std::uint32_t>(id);
    const AddedToken* added = added_->find(known);
    if (added != nullptr && added->special && skip_special) continue;
    const std::string* token = added != nullptr ? &added->decoded : model_->token(known);
    if (token != nullptr) tokens.push_back(*token);
  }
  if (decoder_ != nullptr) decoder_->decode(tokens);
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (decoder_ == nullptr && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

std::shared_ptr<const Tokenizer> read_tokenizer_file(const std::string& path) {
  fs::path file = path;
  std::error_code error;
  if (fs::is_directory(file, error)) file /= "tokenizer.json";
  const std::string text = io::read_text(file.string(), kMostBytes);
  return std::make_shared<FileTokenizer>(text, file.string(), configured_end(file.parent_path()));
}

}  // namespace shardwise::data
