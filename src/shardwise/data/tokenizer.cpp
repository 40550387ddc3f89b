#include "shardwise/data/tokenizer.h"

#include "shardwise/data/byte_tokenizer.h"
#include "shardwise/data/tokenizer_file.h"

namespace shardwise::data {

std::shared_ptr<const Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") {
    return std::make_shared<ByteTokenizer>();
  }
  return read_tokenizer_file(name);
}

}  // namespace shardwise::data
