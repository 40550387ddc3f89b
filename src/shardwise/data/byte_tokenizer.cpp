#include "shardwise/data/byte_tokenizer.h"

#include "shardwise/base/check.h"
#include "shardwise/base/hash.h"

namespace shardwise::data {

std::vector<std::int64_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int64_t> ids;
  ids.reserve(text.size());
  for (const char c : text) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  return ids;
}

std::string ByteTokenizer::decode(std::span<const std::int64_t> ids, bool /*skip_special*/) const {
  std::string text;
  text.reserve(ids.size());
  for (const std::int64_t id : ids) {
    SW_USER_CHECK(DataError, id >= 0 && id < vocabulary_size(), "bytes: token id ", id,
                  " is outside of the vocabulary; ids run from 0 to ", vocabulary_size() - 1);
    text.push_back(static_cast<char>(id));
  }
  return text;
}

std::uint64_t ByteTokenizer::fingerprint() const {
  constexpr std::string_view kName = "bytes, one token a byte";
  return hash_bytes(kName.data(), kName.size());
}

}  // namespace shardwise::data
