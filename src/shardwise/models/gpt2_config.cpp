// Source of fields and defaults: transformers, models/gpt2/configuration_gpt2.py.
#include "shardwise/base/check.h"
#include "shardwise/models/family_config.h"

namespace shardwise::models {
namespace {

// GPT-2's files use its own names; transformers reads the general ones too and prefers them.
std::int64_t size_of(const io::JsonView& document, const char* general, const char* name,
                     std::int64_t most) {
  return (document.has(general) ? document.at(general) : document.at(name)).integer(1, most);
}

void read_sizes(const io::JsonView& document, ModelConfig& config) {
  config.vocabulary = document.at("vocab_size").integer(1, kMaxVocabulary);
  config.hidden = size_of(document, "hidden_size", "n_embd", kMaxHidden);
  config.layers = size_of(document, "num_hidden_layers", "n_layer", kMaxLayers);
  config.max_positions = size_of(document, "max_position_embeddings", "n_positions", kMaxPositions);
  config.longest_sequence = config.max_positions;
  config.attention.heads = size_of(document, "num_attention_heads", "n_head", kMaxHeads);
  SW_USER_CHECK(DataError, config.hidden % config.attention.heads == 0, document.source(),
                ": n_head: the ", config.hidden, " elements of n_embd do not divide into ",
                config.attention.heads, " heads; choose a divisor");
  config.attention.kv_heads = config.attention.heads;
  config.attention.head_dim = config.hidden / config.attention.heads;
  config.mlp.inner = document.integer_or("n_inner", 4 * config.hidden, 1, kMaxInner);
}

}  // namespace

void read_gpt2_config(const io::JsonView& document, ModelConfig& config) {
  read_sizes(document, config);
  config.tied = document.boolean_or("tie_word_embeddings", true);
  config.mlp.activation = activation_of(document, "activation_function", "gelu_new");
  config.norm_epsilon = number_within(document, "layer_norm_epsilon", 1e-5, 0, 1);
  config.initializer_range = number_within(document, "initializer_range", 0.02, 0, 100);
  config.dropout.attention = dropout_of(document, "attn_pdrop", 0.1);
  config.dropout.residual = dropout_of(document, "resid_pdrop", 0.1);
  config.dropout.embedding = dropout_of(document, "embd_pdrop", 0.1);
  config.attention.scaled = document.boolean_or("scale_attn_weights", true);
  config.attention.scaled_by_layer = document.boolean_or("scale_attn_by_inverse_layer_idx", false);
  // Changes the order of a product with a scalar and, in 16 bits, where fp32 is used inside of the
  // attention, which always accumulates in fp32 here. Read so that a wrong type is noticed.
  (void)document.boolean_or("reorder_and_upcast_attn", false);
}

}  // namespace shardwise::models
