// Keys of a config.json. Source: transformers, configuration_utils.py (versions 4 and 5) and
// models/{gpt2,llama,mistral,qwen2,qwen3}/configuration_*.py.
#include <algorithm>
#include <string>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/base/suggest.h"
#include "shardwise/models/family_config.h"

namespace shardwise::models {
namespace {

using Names = std::vector<std::string>;

const Names kOfAll{"model_type", "vocab_size", "tie_word_embeddings", "initializer_range"};

// In every config.json, and without a meaning for training here; those that begin with "_" too.
const Names kOfFiles{
    "architectures", "auto_map", "attn_implementation", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id", "dtype",
    "eos_token_id", "finetuning_task", "gradient_checkpointing", "id2label", "is_decoder",
    "label2id", "output_attentions", "output_hidden_states", "pad_token_id", "prefix",
    "problem_type", "return_dict", "sep_token_id", "task_specific_params", "tf_legacy_loss",
    "tie_encoder_decoder", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version",
    "use_bfloat16", "use_cache",
    // Of generation, which version 4 wrote here.
    "bad_words_ids", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens",
    "temperature", "top_k", "top_p", "typical_p"};

const Names kOfGpt2{"n_positions",
                    "n_embd",
                    "n_layer",
                    "n_head",
                    "n_inner",
                    "n_ctx",
                    "hidden_size",
                    "num_hidden_layers",
                    "num_attention_heads",
                    "max_position_embeddings",
                    "activation_function",
                    "attn_pdrop",
                    "resid_pdrop",
                    "embd_pdrop",
                    "layer_norm_epsilon",
                    "scale_attn_weights",
                    "scale_attn_by_inverse_layer_idx",
                    "reorder_and_upcast_attn",
                    "summary_activation",
                    "summary_first_dropout",
                    "summary_proj_to_labels",
                    "summary_type",
                    "summary_use_proj"};

const Names kOfLlama{"hidden_size",
                     "intermediate_size",
                     "num_hidden_layers",
                     "num_attention_heads",
                     "num_key_value_heads",
                     "head_dim",
                     "max_position_embeddings",
                     "hidden_act",
                     "rms_norm_eps",
                     "attention_bias",
                     "attention_dropout",
                     "mlp_bias",
                     "rope_theta",
                     "rope_scaling",
                     "rope_parameters",
                     "original_max_position_embeddings"};

const Names kOfQwen{"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"};

const Names kOfRope{"rope_type",
                    "type",
                    "rope_theta",
                    "factor",
                    "original_max_position_embeddings",
                    "attention_factor",
                    "beta_fast",
                    "beta_slow",
                    "truncate",
                    "mscale",
                    "mscale_all_dim",
                    "low_freq_factor",
                    "high_freq_factor",
                    "short_factor",
                    "long_factor",
                    "partial_rotary_factor",
                    "mrope_section"};

// Empty for a model type that is not known.
Names keys_of(const std::string& type) {
  const Names none;
  const bool qwen = type == "qwen2" || type == "qwen3";
  if (type == "gpt2") return kOfGpt2;
  if (type != "llama" && type != "mistral" && !qwen) return none;
  Names keys = kOfLlama;
  const Names& windows = qwen ? kOfQwen : type == "mistral" ? Names{"sliding_window"} : none;
  keys.insert(keys.end(), windows.begin(), windows.end());
  return keys;
}

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Adds what is wrong with the keys of an object; suggestions are of `known` alone.
void collect(const io::JsonView& object, const Names& known, const Names& others, Names& problems) {
  for (const auto& [key, value] : object.members()) {
    if (!contains(known, key) && !contains(others, key) && !key.starts_with("_")) {
      problems.push_back(concat(value.field(), ": unknown key", suggest(key, known)));
    }
  }
}

}  // namespace

void refuse_unknown_keys(const io::JsonView& document) {
  const std::string type = document.at("model_type").string();
  Names known = keys_of(type);
  if (known.empty()) {
    return;
  }
  known.insert(known.end(), kOfAll.begin(), kOfAll.end());
  Names others = kOfFiles;
  for (const std::string& name : unbuilt_settings()) others.push_back(name);
  Names problems;
  collect(document, known, others, problems);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto settings = document.find(key);
    if (settings && settings->is_object()) collect(*settings, kOfRope, {}, problems);
  }
  std::string text;
  for (const std::string& problem : problems) text += (text.empty() ? "" : "; ") + problem;
  SW_USER_CHECK(DataError, problems.empty(), document.source(), ": ", text, "; models of type ",
                type, " have no such key: correct or remove it");
}

}  // namespace shardwise::models
