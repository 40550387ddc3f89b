// "Metaspace", which a tokenizer.json has among pre-tokenizers and decoders: a visible character
// for blanks, as sentencepiece writes them.
#pragma once

#include <string>

#include "shardwise/io/json_view.h"

namespace shardwise::data {

enum class PrependScheme { kAlways, kFirst, kNever };

struct Metaspace {
  std::string replacement = "\xE2\x96\x81";       // U+2581
  PrependScheme scheme = PrependScheme::kAlways;  // whether the text gets one in front
  bool split = true;
};

Metaspace read_metaspace(const io::JsonView& view);

}  // namespace shardwise::data
