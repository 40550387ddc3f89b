// The tokenizer "bytes".
#pragma once

#include "shardwise/data/tokenizer.h"

namespace shardwise::data {

// One token a byte, whatever the bytes are.
class ByteTokenizer : public Tokenizer {
 public:
  std::int64_t vocabulary_size() const override { return 256; }
  std::vector<std::int64_t> encode(std::string_view text) const override;
  bool takes_any_bytes() const override { return true; }
  std::string decode(std::span<const std::int64_t> ids, bool skip_special) const override;
  std::optional<std::int64_t> end_of_text() const override { return std::nullopt; }
  std::uint64_t fingerprint() const override;
};

}  // namespace shardwise::data
