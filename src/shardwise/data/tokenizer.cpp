#include "shardwise/data/tokenizer.h"

#include <filesystem>

#include "shardwise/base/check.h"
#include "shardwise/data/byte_tokenizer.h"
#include "shardwise/data/tokenizer_file.h"

namespace shardwise::data {

std::shared_ptr<const Tokenizer> make_tokenizer(const std::string& name, const std::string& key) {
  if (name == "bytes") {
    return std::make_shared<ByteTokenizer>();
  }
  std::error_code error;
  SW_USER_CHECK(IoError, std::filesystem::exists(name, error), key, ": '", name,
                "' does not exist; it takes \"bytes\", or the path of a tokenizer.json or of a "
                "folder with one (a model's name is no path: nothing is downloaded)");
  return read_tokenizer_file(name);
}

std::vector<std::int64_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<std::int64_t> tokens = tokenizer.encode(prompt);
  SW_USER_CHECK(ConfigError, prompt.empty() || !tokens.empty(), "training.sample_prompt: \"",
                prompt, "\" gives no token; write another, or leave it out");
  return tokens;
}

}  // namespace shardwise::data
