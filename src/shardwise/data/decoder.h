// The "decoder" of a tokenizer.json: tokens back to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shardwise/io/json_view.h"

namespace shardwise::data {

// Immutable; safe to use from several threads.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Changes tokens into parts of the text, which are then joined.
  virtual void decode(std::vector<std::string>& tokens) const = 0;
};

// Sequence, ByteLevel, Metaspace, ByteFallback, Fuse, Strip, Replace, BPEDecoder. Throws DataError
// for others.
std::unique_ptr<const Decoder> make_decoder(const io::JsonView& view);

}  // namespace shardwise::data
