// Source of fields and defaults: transformers,
// models/{llama,mistral,qwen2,qwen3}/configuration_*.py.
#include <algorithm>
#include <array>
#include <optional>

#include "shardwise/base/check.h"
#include "shardwise/models/family_config.h"

namespace shardwise::models {
namespace {

// Where the model types differ. Sizes are what a missing key means; 0: it follows from others.
struct Variant {
  const char* model_type;
  std::int64_t kv_heads;  // num_key_value_heads
  std::int64_t head_dim;  // head_dim
  bool reads_attention_bias, reads_mlp_bias;
  bool qkv_bias;  // without attention_bias
  bool qk_norm;
  bool heads_divide_hidden;  // required even where head_dim is given
};

constexpr std::array kVariants{
    Variant{"llama", 0, 0, true, true, false, false, true},
    Variant{"mistral", 8, 0, false, false, false, false, false},
    Variant{"qwen2", 32, 0, false, false, true, false, false},
    Variant{"qwen3", 32, 128, true, false, false, true, false},
};

const Variant& variant_of(const ModelConfig& config) {
  for (const Variant& variant : kVariants) {
    if (config.model_type == variant.model_type) {
      return variant;
    }
  }
  SW_FAIL(InternalError, "no variant ", config.model_type);
}

// transformers tells a missing number of key and value heads from null, which means `heads`.
std::int64_t kv_heads_of(const io::JsonView& document, const Variant& variant, std::int64_t heads) {
  const bool missing = !document.json().contains("num_key_value_heads");
  const std::int64_t fallback = missing && variant.kv_heads > 0 ? variant.kv_heads : heads;
  const std::int64_t kv_heads = document.integer_or("num_key_value_heads", fallback, 1, kMaxHeads);
  SW_USER_CHECK(DataError, kv_heads <= heads && heads % kv_heads == 0, document.source(),
                ": num_key_value_heads: ", heads, " attention heads do not divide among ", kv_heads,
                missing ? " (the default of this model type)" : "", "; give a divisor");
  return kv_heads;
}

std::int64_t head_dim_of(const io::JsonView& document, const Variant& variant,
                         const ModelConfig& config) {
  const bool given = document.has("head_dim");
  SW_USER_CHECK(DataError,
                config.hidden % config.attention.heads == 0 || !variant.heads_divide_hidden,
                document.source(), ": num_attention_heads: hidden_size ", config.hidden,
                " does not divide into ", config.attention.heads, " heads; choose a divisor");
  const std::int64_t fallback =
      variant.head_dim > 0 ? variant.head_dim : config.hidden / config.attention.heads;
  const std::int64_t head_dim = given ? document.at("head_dim").integer(2, kMaxHeadDim) : fallback;
  SW_USER_CHECK(DataError, head_dim >= 2 && head_dim % 2 == 0 && head_dim <= kMaxHeadDim,
                document.source(), ": head_dim: ", head_dim,
                given ? "" : " (hidden_size / num_attention_heads)",
                " cannot be rotated in pairs; allowed: an even number from 2 to ", kMaxHeadDim);
  return head_dim;
}

void read_sizes(const io::JsonView& document, const Variant& variant, ModelConfig& config) {
  require_keys(document, {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "max_position_embeddings"});
  config.vocabulary = document.at("vocab_size").integer(1, kMaxVocabulary);
  config.hidden = document.at("hidden_size").integer(1, kMaxHidden);
  config.layers = document.at("num_hidden_layers").integer(1, kMaxLayers);
  config.max_positions = document.at("max_position_embeddings").integer(1, kMaxPositions);
  config.attention.heads = document.at("num_attention_heads").integer(1, kMaxHeads);
  config.attention.kv_heads = kv_heads_of(document, variant, config.attention.heads);
  config.attention.head_dim = head_dim_of(document, variant, config);
  config.mlp.inner = document.at("intermediate_size").integer(1, kMaxInner);
}

void read_biases(const io::JsonView& document, const Variant& variant, ModelConfig& config) {
  const bool attention = document.boolean_or("attention_bias", false);
  if (variant.reads_attention_bias) {
    config.attention.qkv_bias = config.attention.output_bias = attention;
  } else if (attention && !variant.qkv_bias) {
    document.at("attention_bias")
        .fail(concat("models of type ", config.model_type,
                     " have no attention biases; leave it out or false"));
  } else {
    config.attention.qkv_bias = variant.qkv_bias;
  }
  config.mlp.bias = document.boolean_or("mlp_bias", false);
  if (config.mlp.bias && !variant.reads_mlp_bias) {
    document.at("mlp_bias")
        .fail(concat("models of type ", config.model_type,
                     " have no biases there; leave it out or false"));
  }
}

// A row of the embedding, counted from the end where negative.
std::int64_t padding_row_of(const io::JsonView& document, std::int64_t vocabulary) {
  if (!document.has("pad_token_id")) {
    return -1;
  }
  const std::int64_t row = document.at("pad_token_id").integer(-vocabulary, vocabulary - 1);
  return row < 0 ? row + vocabulary : row;
}

// Tokens that a token sees, itself among them; 0: all. transformers tells a missing key, which
// means 4096, from null, which means all.
std::int64_t sliding_window_of(const io::JsonView& document) {
  const bool missing = !document.json().contains("sliding_window");
  const std::int64_t fallback = missing ? 4096 : 0;
  return document.integer_or("sliding_window", fallback, 1, std::int64_t{1} << 62);
}

// "layer_types", one for each layer.
std::vector<std::int64_t> windows_of_types(const io::JsonView& types, std::int64_t window,
                                           std::int64_t layers) {
  const auto items = types.items();
  if (static_cast<std::int64_t>(items.size()) != layers) {
    types.fail(concat("has ", items.size(), " entries for ", layers, " layers"));
  }
  std::vector<std::int64_t> windows;
  for (const io::JsonView& item : items) {
    const bool sliding = item.string() == "sliding_attention";
    if (!sliding && item.string() != "full_attention") {
      item.fail(concat("'", item.string(),
                       "' is not built; there are full_attention and sliding_attention"));
    }
    if (sliding && window == 0) {
      item.fail("sliding_attention needs use_sliding_window true and a sliding_window");
    }
    windows.push_back(sliding ? window : 0);
  }
  return windows;
}

// Qwen's windows, which are off by default, begin at layer max_window_layers unless layer_types
// says which layers have them.
std::vector<std::int64_t> qwen_windows(const io::JsonView& document, std::int64_t layers) {
  const bool used = document.boolean_or("use_sliding_window", false);
  const std::int64_t window = used ? sliding_window_of(document) : 0;
  const std::int64_t first = document.integer_or("max_window_layers", 28, 0, std::int64_t{1} << 31);
  if (const auto types = document.find("layer_types")) {
    return windows_of_types(*types, window, layers);
  }
  std::vector<std::int64_t> windows(static_cast<std::size_t>(layers), window);
  std::fill_n(windows.begin(), std::min(first, layers), 0);
  return windows;
}

}  // namespace

void read_llama_config(const io::JsonView& document, ModelConfig& config) {
  const Variant& variant = variant_of(config);
  read_sizes(document, variant, config);
  read_biases(document, variant, config);
  config.attention.qk_norm = variant.qk_norm;
  config.tied = document.boolean_or("tie_word_embeddings", false);
  config.mlp.activation = activation_of(document, "hidden_act", "silu");
  config.norm_epsilon = number_within(document, "rms_norm_eps", 1e-6, 0, 1);
  config.initializer_range = number_within(document, "initializer_range", 0.02, 0, 100);
  config.dropout.attention = dropout_of(document, "attention_dropout", 0);
  config.padding_row = padding_row_of(document, config.vocabulary);
  config.attention.rope = read_rope_config(document, config);
  if (config.model_type == "mistral") {
    config.attention.windows.assign(static_cast<std::size_t>(config.layers),
                                    sliding_window_of(document));
  } else if (config.model_type != "llama") {
    config.attention.windows = qwen_windows(document, config.layers);
  }
}

}  // namespace shardwise::models
