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
  // Whether the documents of a sample are to be kept apart.
  virtual bool separates_documents() const { return false; }
  // Where the documents of a sample begin, ascending; the first at 0, the middle of one or not.
  virtual std::vector<std::int64_t> document_begins(std::int64_t /*sample*/) const { return {0}; }
};

// Samples of a corpus in rows, and where their documents begin where these are to be kept apart.
struct DocumentOffsets {
  // Places in the tokens of all rows, row by row, then the number of tokens; no document is empty.
  // Empty where documents are not kept apart.
  std::vector<std::int32_t> offsets{};
  std::int64_t longest = 0;  // tokens
};

// Copies samples into rows of `out`, [samples, length] row-major.
DocumentOffsets read_samples(const Corpus& corpus, std::span<const std::int64_t> samples,
                             std::span<std::int64_t> out);

struct CorpusOptions {
  std::vector<std::string> files;  // text (UTF-8) and token files; globs are expanded, sorted
  std::int64_t length = 0;         // tokens a sample
  // Share of the documents' tokens, at the end of the corpus, that is kept for evaluation, in whole
  // samples; or files of their own.
  double held_out = 0;
  std::vector<std::string> held_out_files{};  // braces: GCC warns where it is left out otherwise
  bool separate_documents = false;            // Corpus::separates_documents
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
