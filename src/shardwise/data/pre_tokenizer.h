// The "pre_tokenizer" of a tokenizer.json: cuts text into the words within which BPE merges.
#pragma once

#include <memory>

#include "shardwise/data/piece.h"
#include "shardwise/io/json_view.h"

namespace shardwise::data {

// Immutable; safe to use from several threads.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Gives the words of the piece (not empty) in order. A word's text is valid until `sink` returns.
  virtual void split(const Piece& piece, const PieceSink& sink) const = 0;
};

// Sequence, ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace. Throws
// DataError for others.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const io::JsonView& view);

}  // namespace shardwise::data
