// The parts of read_model_config.
#pragma once

#include <string>
#include <vector>

#include "shardwise/io/json_view.h"
#include "shardwise/models/model_config.h"

namespace shardwise::models {

// Fields of one family, from the document's root; `config.model_type` is set.
void read_gpt2_config(const io::JsonView& document, ModelConfig& config);
void read_llama_config(const io::JsonView& document, ModelConfig& config);

// Throws DataError that names all members of `keys` that are missing or null.
void require_keys(const io::JsonView& document, const std::vector<std::string>& keys);

// Rotary embedding; needs `config.attention.head_dim` and `config.max_positions`.
RopeConfig read_rope_config(const io::JsonView& document, const ModelConfig& config);

// Throws DataError for the first setting that asks for something that is not built, in any family.
void refuse_unbuilt_settings(const io::JsonView& document);

// Names of the settings that it looks at.
std::vector<std::string> unbuilt_settings();

// A member that must be a number within bounds; `fallback` where it is missing or null.
double number_within(const io::JsonView& object, const char* key, double fallback, double least,
                     double most);
// A dropout probability, in [0, 1).
double dropout_of(const io::JsonView& document, const char* key, double fallback);
// The name of a known activation function.
std::string activation_of(const io::JsonView& document, const char* key, const char* fallback);

}  // namespace shardwise::models
