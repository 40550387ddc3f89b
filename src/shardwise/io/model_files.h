// Names of weight files in Hugging Face's model folders.
#pragma once

#include <string>
#include <string_view>

namespace shardwise::io {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kModelIndex = "model.safetensors.index.json";

// "model-00002-of-00003.safetensors" for number 2 of 3.
std::string model_shard_name(std::size_t number, std::size_t count);

// Whether a file has a name of that form.
bool is_model_shard(std::string_view name);

// Whether a save writes files of this name: a model, a shard or the index; or their temporary names
// (see AtomicFile), which a killed process leaves behind.
bool is_weight_file(std::string_view name);

}  // namespace shardwise::io
