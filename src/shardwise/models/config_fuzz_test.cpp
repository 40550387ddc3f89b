// Broken config.json documents: whatever comes in, nothing but DataError or a model that works
// comes out.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>

#include "shardwise/base/error.h"
#include "shardwise/base/mutation.h"
#include "shardwise/models/model.h"

namespace shardwise::models {
namespace {

constexpr int kMutants = 100'000;
constexpr const char* kSource = "folder/config.json";

constexpr std::array<const char*, 6> kValid{
    R"({"model_type": "gpt2", "vocab_size": 11, "n_positions": 9, "n_embd": 8, "n_layer": 2,
        "n_head": 2, "n_inner": 12, "activation_function": "gelu_new", "attn_pdrop": 0.1,
        "scale_attn_by_inverse_layer_idx": true, "tie_word_embeddings": true})",
    R"({"model_type": "llama", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 16, "hidden_act": "silu", "attention_bias": true,
        "pad_token_id": -1, "rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2}})",
    R"({"model_type": "mistral", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 6,
        "max_position_embeddings": 16, "sliding_window": 16, "rope_parameters": {"rope_theta": 50,
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8}})",
    R"({"model_type": "qwen2", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": null,
        "max_position_embeddings": 16, "layer_types": ["full_attention"], "rope_scaling":
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 8,
         "beta_slow": 0.5, "truncate": false, "original_max_position_embeddings": 4}})",
    R"({"model_type": "qwen3", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "max_position_embeddings": 16, "tie_word_embeddings": true, "rope_scaling":
        {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1.5, 4.0], "factor": 4,
         "original_max_position_embeddings": 4}})",
    R"({"model_type": "llama", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 16,
        "pretraining_tp": 1, "quantization_config": null, "partial_rotary_factor": 1.0,
        "num_local_experts": 0, "rms_norm_eps": 1e-05, "initializer_range": 0.02})"};

void expect_sane(const ModelConfig& config) {
  const auto within = [](std::int64_t value, std::int64_t most) {
    return value >= 1 && value <= most;
  };
  EXPECT_TRUE(within(config.vocabulary, kMaxVocabulary) && within(config.hidden, kMaxHidden) &&
              within(config.layers, kMaxLayers) && within(config.max_positions, kMaxPositions) &&
              within(config.attention.heads, kMaxHeads) &&
              within(config.attention.kv_heads, config.attention.heads) &&
              within(config.attention.head_dim, kMaxHidden) &&
              within(config.mlp.inner, 4 * kMaxInner));
  EXPECT_EQ(config.attention.heads % config.attention.kv_heads, 0);
  const std::int64_t parameters = parameter_count(config);
  EXPECT_TRUE(parameters > 0 && parameters < 2 * kMaxParameters) << parameters;
  EXPECT_LT(config.padding_row, config.vocabulary);
}

// Finite for sane weights; strange factors may still overflow.
void compute(const ModelConfig& config) {
  const Model model = make_model(config, 1);
  const std::int64_t length =
      config.longest_sequence > 0 ? std::min<std::int64_t>(config.longest_sequence, 5) : 5;
  const at::Tensor tokens = at::zeros({1, length}, at::kLong);
  EXPECT_EQ(model.logits(tokens).sizes(),
            (std::vector<std::int64_t>{1, length, config.vocabulary}));
}

TEST(ConfigFuzz, MutantsGiveDataErrorsOrModels) {
  const at::NoGradGuard no_grad;
  std::mt19937_64 random(20251201);
  int valid = 0, computed = 0;
  for (int i = 0; i < kMutants; ++i) {
    const std::string text = mutate(kValid[i % kValid.size()], random);
    try {
      const ModelConfig config = read_model_config(io::JsonView::parse(text, kSource));
      expect_sane(config);
      ++valid;
      // Building all of them would take minutes.
      if (valid % 32 == 0 && parameter_count(config) < 50'000) {
        compute(config);
        ++computed;
      }
    } catch (const DataError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(kSource)) << error.what();
    }
    ASSERT_FALSE(HasFailure()) << text;
  }
  EXPECT_GT(valid, kMutants / 20);
  EXPECT_LT(valid, kMutants / 10 * 9);
  EXPECT_GT(computed, 100);
}

TEST(ConfigFuzz, EveryDocumentIsValidToBeginWith) {
  for (const char* text : kValid) {
    compute(read_model_config(io::JsonView::parse(text, kSource)));
  }
}

// Every value in turn becomes something else.
TEST(ConfigFuzz, OtherValuesInPlaceOfEachValue) {
  const at::NoGradGuard no_grad;
  for (const char* text : kValid) {
    const auto original = nlohmann::ordered_json::parse(text);
    const auto values = original.flatten();
    for (const auto& [pointer, old] : values.items()) {
      for (const char* value : {"null", "0", "1", "-1", "2.5", "1e300", "true", "\"x\"", "[]", "{}",
                                "9223372036854775807", "16777216"}) {
        auto changed = original;
        changed[nlohmann::ordered_json::json_pointer(pointer)] =
            nlohmann::ordered_json::parse(value);
        try {
          const std::string document = changed.dump();
          const ModelConfig config = read_model_config(io::JsonView::parse(document, kSource));
          expect_sane(config);
          if (parameter_count(config) < 50'000) {
            compute(config);
          }
        } catch (const DataError& error) {
          // The source and a field.
          EXPECT_TRUE(std::string(error.what()).starts_with(std::string(kSource) + ": "))
              << error.what();
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardwise::models
