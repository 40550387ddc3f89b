// The shape of a model, in Hugging Face's terms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/io/json_view.h"

namespace shardwise::models {

enum class Family { kGpt2, kLlama };

// How rotary frequencies are scaled ("rope_scaling" or "rope_parameters" of config.json).
enum class RopeScaling { kNone, kLinear, kDynamic, kYarn, kLongRope, kLlama3 };

// Rotary position embedding. What a kind of scaling does not use keeps its default.
struct RopeConfig {
  RopeScaling scaling = RopeScaling::kNone;  // rope_type, or type in older files
  double theta = 10000;                      // rope_theta
  double factor = 1;  // of linear, dynamic, yarn, llama3 (of longrope it is in attention_factor)
  std::int64_t original_max_positions = 0;  // original_max_position_embeddings, tokens
  double attention_factor = 1;       // cosines and sines are multiplied by it: yarn, longrope
  double beta_fast = 32;             // yarn: rotations from which on nothing is interpolated
  double beta_slow = 1;              // yarn: rotations up to which everything is interpolated
  bool truncate = true;              // yarn: whole dimensions bound the ramp between the two
  double low_freq_factor = 1;        // llama3
  double high_freq_factor = 4;       // llama3
  std::vector<double> short_factor;  // longrope, head_dim / 2: up to original_max_positions
  std::vector<double> long_factor;   // longrope, head_dim / 2: beyond
};

// Comments name the keys of config.json, those of Llama's family first, then GPT-2's.
struct AttentionConfig {
  std::int64_t heads = 0;        // num_attention_heads, n_head
  std::int64_t kv_heads = 0;     // num_key_value_heads; GPT-2: heads
  std::int64_t head_dim = 0;     // head_dim; default hidden / heads
  bool qkv_bias = false;         // attention_bias, or the model type says so; not for GPT-2
  bool output_bias = false;      // attention_bias: o_proj; not for GPT-2
  bool qk_norm = false;          // qwen3: RMSNorm of each head of q and k
  bool scaled = true;            // GPT-2: scale_attn_weights, by 1 / sqrt(head_dim)
  bool scaled_by_layer = false;  // GPT-2: scale_attn_by_inverse_layer_idx
  // sliding_window of each layer, as ops::CausalMask has it; empty: no layer has one
  std::vector<std::int64_t> windows;
  RopeConfig rope;  // not for GPT-2

  std::int64_t window_of(std::int64_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)];
  }
};

struct MlpConfig {
  std::int64_t inner = 0;  // intermediate_size, n_inner
  std::string activation;  // hidden_act, activation_function: a name of activation.h
  bool bias = false;       // mlp_bias; not for GPT-2
};

// Probabilities, in [0, 1); applied in training only.
struct DropoutConfig {
  double attention = 0;  // attention_dropout, attn_pdrop
  double residual = 0;   // GPT-2: resid_pdrop
  double embedding = 0;  // GPT-2: embd_pdrop
};

// Everything is within the limits below.
struct ModelConfig {
  std::string model_type;          // "gpt2", "llama", "mistral", "qwen2", "qwen3"
  std::int64_t vocabulary = 0;     // vocab_size
  std::int64_t hidden = 0;         // hidden_size, n_embd
  std::int64_t layers = 0;         // num_hidden_layers, n_layer
  std::int64_t max_positions = 0;  // max_position_embeddings, n_positions; tokens
  // The longest sequence, in tokens; 0: any length. GPT-2 has no embeddings beyond n_positions.
  std::int64_t longest_sequence = 0;
  bool tied = false;  // tie_word_embeddings: the head is the embedding's weight
  // pad_token_id as a row of the embedding that starts as zeros and never gets a gradient from
  // there; -1: none, as in GPT-2.
  std::int64_t padding_row = -1;
  AttentionConfig attention;
  MlpConfig mlp;
  DropoutConfig dropout;
  double norm_epsilon = 0;          // rms_norm_eps, layer_norm_epsilon
  double initializer_range = 0.02;  // standard deviation of random weights
  std::string source;               // the config.json it came from, for errors
  std::string document;             // its text, for saving

  Family family() const { return model_type == "gpt2" ? Family::kGpt2 : Family::kLlama; }
};

// Limits of read_model_config, chosen far above any model there is and low enough that no product
// of sizes overflows.
inline constexpr std::int64_t kMaxHidden = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxInner = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxLayers = 100'000;
inline constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;
inline constexpr std::int64_t kMaxHeads = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxHeadDim = std::int64_t{1} << 14;
// 4.4e12 parameters, 16 TiB in fp32.
inline constexpr std::int64_t kMaxParameters = std::int64_t{1} << 42;

// From config.json's content: "model_type" says which family. Sizes must be given; other missing
// fields mean what they mean to Hugging Face. Fields that transformers' class of this model type
// does not read are ignored. Throws DataError that names file and field for missing and wrong
// values, for settings that change the numbers and are not built, and for more than kMaxParameters.
ModelConfig read_model_config(const io::JsonView& document);

// Throws DataError with the nearest names for keys that a config.json of this model type does not
// have, for shapes that are typed by hand: read_model_config ignores them. What Hugging Face writes
// into a config.json passes. Does nothing for a model type that is not known.
void refuse_unknown_keys(const io::JsonView& document);

// How many parameters a model of this shape has; a tied head counts once.
std::int64_t parameter_count(const ModelConfig& config);

}  // namespace shardwise::models
