// The tokens to train on and to evaluate with.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/config/job.h"
#include "shardwise/data/tokenizer.h"

namespace shardwise::data {

// Samples of `length` tokens each. Immutable.
class Corpus {
 public:
  virtual ~Corpus() = default;
  virtual std::int64_t size() const = 0;  // samples
  virtual std::int64_t length() const = 0;
  virtual std::int64_t vocabulary() const = 0;  // every token is below it
  virtual void read(std::int64_t sample, std::span<std::int64_t> out) const = 0;
};

struct CorpusOptions {
  std::vector<std::string> files;  // text (UTF-8) and token files; globs are expanded, sorted
  std::int64_t length = 0;         // tokens a sample
  // Share of the documents' tokens, at the end of the corpus, that is kept for evaluation, in whole
  // samples; or files of their own.
  double held_out = 0;
  std::vector<std::string> held_out_files{};  // braces: GCC warns where it is left out otherwise
};

CorpusOptions corpus_options(const config::JobData& data);

struct Split {
  std::shared_ptr<const Corpus> train;
  std::shared_ptr<const Corpus> held_out;  // null without one
};

// A text file is one document; it must be UTF-8, except for the tokenizer "bytes", and no binary
// file. Token files must have been made by the same tokenizer (fingerprint).
// Throws IoError, DataError or ConfigError (the job's key data.*) with what to change.
Split open_corpus(const CorpusOptions& options, const Tokenizer& tokenizer);

// The same where there is no text to tokenize. Otherwise checks what can be seen without, files and
// their kinds, and returns nothing.
std::optional<Split> open_tokenized_corpus(const CorpusOptions& options,
                                           const Tokenizer& tokenizer);

}  // namespace shardwise::data
