// Micro-batches of token windows in a fixed shuffled order that any number of ranks can continue.
//
// A corpus is cut into samples of `length` tokens: documents are put one behind the other (with the
// tokenizer's end of text between them) and cut, the rest at the end is dropped. Sample number i of
// an epoch is the same for every number of ranks: rank r of n takes samples
// position + [r, r + 1) × micro_batch of each global micro-batch of n × micro_batch samples. Only
// where an epoch ends depends on the number of ranks: at the last whole global micro-batch. With
// separate documents a document that was cut is one in each of its samples.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/data/corpus.h"

namespace shardwise::data {

// Where a loader stands. Text form "epoch=1 position=4096 seed=7" for logs and checkpoints.
struct Cursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // samples of this epoch taken by all ranks together
  std::uint64_t seed = 0;

  bool operator==(const Cursor&) const = default;
};

std::string to_string(const Cursor& cursor);
// Throws UsageError for another text than to_string() makes.
Cursor parse_cursor(const std::string& text);

struct LoaderOptions {
  std::int64_t micro_batch = 1;  // samples a call and rank
  int rank = 0;
  int world_size = 1;
  std::uint64_t seed = 0;
  bool shuffle = true;  // anew in every epoch
};

// Endless: after the last full global micro-batch of an epoch the next epoch begins; samples that
// do not fill one are left out of that epoch. Not thread-safe.
class TokenLoader {
 public:
  // Throws ConfigError when the corpus has fewer samples than one global micro-batch takes.
  TokenLoader(std::shared_ptr<const Corpus> corpus, const LoaderOptions& options);

  // This rank's next micro-batch: [micro_batch, length] token ids, row-major, and their documents.
  DocumentOffsets next(std::span<std::int64_t> out);
  std::int64_t tokens_per_batch() const;

  Cursor cursor() const { return cursor_; }
  // Goes on where a loader of any number of ranks stood, in the order of the cursor's seed. Throws
  // UsageError for a cursor that does not fit the corpus.
  void seek(const Cursor& cursor);

 private:
  std::shared_ptr<const Corpus> corpus_;
  LoaderOptions options_;
  Cursor cursor_;
};

// The loader of the training samples; `held_out` is the share that was kept from them. Throws
// ConfigError as TokenLoader does, and for a share that leaves less than one global micro-batch.
std::unique_ptr<TokenLoader> make_loader(const Split& split, double held_out,
                                         const LoaderOptions& options);

}  // namespace shardwise::data
