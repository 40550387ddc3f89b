#include "shardwise/models/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shardwise/base/check.h"
#include "shardwise/base/suggest.h"
#include "shardwise/models/activation.h"
#include "shardwise/models/family_config.h"

namespace shardwise::models {
namespace {

// In double, which cannot overflow: the limits of the sizes allow 2^64 and more.
double approximate_parameters(const ModelConfig& config) {
  const double hidden = static_cast<double>(config.hidden);
  const double inner = static_cast<double>(config.mlp.inner);
  const double heads = static_cast<double>(config.attention.heads + config.attention.kv_heads);
  const double embeddings = static_cast<double>(config.vocabulary) * (config.tied ? 1 : 2) +
                            (config.family() == Family::kGpt2 ? config.max_positions : 0);
  const double matrices = config.family() == Family::kGpt2 ? 2 : 3;
  const double block =
      hidden * (2 * heads * static_cast<double>(config.attention.head_dim) + matrices * inner);
  return embeddings * hidden + static_cast<double>(config.layers) * block;
}

void check_size(const io::JsonView& document, const ModelConfig& config) {
  const double count = approximate_parameters(config);
  SW_USER_CHECK(DataError, count <= static_cast<double>(kMaxParameters), document.source(),
                ": vocab_size, hidden_size, layers and inner size: together they make ", count,
                " parameters; allowed are at most ", kMaxParameters);
}

}  // namespace

void require_keys(const io::JsonView& document, const std::vector<std::string>& keys) {
  std::string missing;
  for (const std::string& key : keys) {
    missing += document.has(key) ? "" : (missing.empty() ? "" : ", ") + key;
  }
  SW_USER_CHECK(DataError, missing.empty(), document.source(), ": ", missing,
                ": missing or null; models of this type need all of ", join_or(keys));
}

double number_within(const io::JsonView& object, const char* key, double fallback, double least,
                     double most) {
  const auto found = object.find(key);
  if (!found) {
    return fallback;
  }
  const double value = found->number();
  if (value < least || value > most) {
    found->fail(concat(value, " is out of range; allowed: a number from ", least, " to ", most));
  }
  return value;
}

double dropout_of(const io::JsonView& document, const char* key, double fallback) {
  // 1 would divide by zero where the rest is scaled up.
  return number_within(document, key, fallback, 0, std::nextafter(1.0, 0.0));
}

std::string activation_of(const io::JsonView& document, const char* key, const char* fallback) {
  const auto found = document.find(key);
  if (!found) {
    return fallback;
  }
  const std::string name = found->string();
  const std::vector<std::string> known(kActivationNames.begin(), kActivationNames.end());
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    found->fail(concat("no activation function '", name, "'; there is ", join_or(known)));
  }
  return name;
}

ModelConfig read_model_config(const io::JsonView& document) {
  ModelConfig config;
  const io::JsonView type = document.at("model_type");
  config.model_type = type.string();
  config.source = document.source();
  config.document = document.json().dump(2);
  refuse_unbuilt_settings(document);
  if (config.model_type == "gpt2") {
    read_gpt2_config(document, config);
  } else if (config.model_type == "llama" || config.model_type == "mistral" ||
             config.model_type == "qwen2" || config.model_type == "qwen3") {
    read_llama_config(document, config);
  } else {
    type.fail(concat("no model family '", config.model_type,
                     "'; there are gpt2, llama, mistral, qwen2 and qwen3"));
  }
  check_size(document, config);
  return config;
}

std::int64_t parameter_count(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden, inner = config.mlp.inner;
  const std::int64_t embedding = config.vocabulary * hidden;
  const std::int64_t head = config.tied ? 0 : embedding;
  if (config.family() == Family::kGpt2) {
    const std::int64_t attention = 4 * hidden * hidden + 4 * hidden;
    const std::int64_t mlp = 2 * hidden * inner + inner + hidden;
    return embedding + config.max_positions * hidden +
           config.layers * (attention + mlp + 4 * hidden) + 2 * hidden + head;
  }
  const std::int64_t q = config.attention.heads * config.attention.head_dim,
                     kv = config.attention.kv_heads * config.attention.head_dim;
  const std::int64_t attention = hidden * (2 * q + 2 * kv) +
                                 (config.attention.qkv_bias ? q + 2 * kv : 0) +
                                 (config.attention.output_bias ? hidden : 0) +
                                 (config.attention.qk_norm ? 2 * config.attention.head_dim : 0);
  const std::int64_t mlp = 3 * hidden * inner + (config.mlp.bias ? 2 * inner + hidden : 0);
  return embedding + config.layers * (attention + mlp + 2 * hidden) + hidden + head;
}

}  // namespace shardwise::models
