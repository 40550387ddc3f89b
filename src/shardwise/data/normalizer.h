// The "normalizer" of a tokenizer.json.
#pragma once

#include <memory>

#include "shardwise/data/piece.h"
#include "shardwise/io/json_view.h"

namespace shardwise::data {

// Immutable; safe to use from several threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Changes the text in place; it is valid UTF-8 before and after.
  virtual void normalize(OwnedPiece& piece) const = 0;
};

// Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, ByteLevel.
// Throws DataError for others.
std::unique_ptr<const Normalizer> make_normalizer(const io::JsonView& view);

}  // namespace shardwise::data
