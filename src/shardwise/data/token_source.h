// Runs of tokens that a corpus is joined from: text in memory, bytes of a file, token files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/data/tokenizer.h"

namespace shardwise::data {

// Immutable. Documents are already joined with the end of text.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t tokens() const = 0;
  // Copies tokens [begin, begin + out.size()).
  virtual void read(std::int64_t begin, std::span<std::int64_t> out) const = 0;
  // Where documents begin among tokens [begin, end), ascending. An end of text belongs to the
  // document before it.
  virtual std::vector<std::int64_t> document_begins(std::int64_t begin, std::int64_t end) const = 0;
};

// A text file as one document, or a token file that `tokenizer` made. Throws IoError or DataError,
// which names the file; the latter also for text that check_text refuses.
std::shared_ptr<const TokenSource> open_source(const std::string& path, const Tokenizer& tokenizer);

// Several sources one behind the other, with `separator` between two of them where there is one.
// Sources without a token are left out.
std::shared_ptr<const TokenSource> join(std::vector<std::shared_ptr<const TokenSource>> sources,
                                        std::optional<std::int64_t> separator);

}  // namespace shardwise::data
