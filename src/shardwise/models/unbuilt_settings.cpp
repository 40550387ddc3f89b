// Settings that change the numbers and are not built, whatever the family: they are refused, never
// ignored.
#include <array>
#include <string>

#include "shardwise/base/check.h"
#include "shardwise/models/family_config.h"

namespace shardwise::models {
namespace {

struct Unbuilt {
  const char* key;
  const char* meaning;
};

// Harmless when missing, null, false, 0 or empty.
constexpr std::array kMustBeOff{
    Unbuilt{"quantization_config", "quantised weights"},
    Unbuilt{"compression_config", "compressed weights"},
    Unbuilt{"per_layer_config", "layers that differ from each other"},
    Unbuilt{"add_cross_attention", "cross-attention"},
    Unbuilt{"is_encoder_decoder", "an encoder"},
    Unbuilt{"pruned_heads", "pruned attention heads"},
    Unbuilt{"num_local_experts", "a mixture of experts"},
    Unbuilt{"num_experts", "a mixture of experts"},
    Unbuilt{"num_experts_per_tok", "a mixture of experts"},
    Unbuilt{"n_routed_experts", "a mixture of experts"},
    Unbuilt{"n_shared_experts", "a mixture of experts"},
    Unbuilt{"moe_intermediate_size", "a mixture of experts"},
    Unbuilt{"kv_lora_rank", "latent attention"},
    Unbuilt{"attn_logit_softcapping", "capped attention logits"},
    Unbuilt{"final_logit_softcapping", "capped logits"},
    Unbuilt{"alibi", "ALiBi position biases"},
};

// Harmless when missing, null or 1.
constexpr std::array kMustBeOne{
    Unbuilt{"partial_rotary_factor", "rotary embedding of a part of the head"},
    Unbuilt{"rotary_pct", "rotary embedding of a part of the head"},
    Unbuilt{"pretraining_tp", "products cut as tensor-parallel training cut them"},
    Unbuilt{"logit_scale", "scaled logits"},
    Unbuilt{"logits_scaling", "scaled logits"},
    Unbuilt{"embedding_multiplier", "scaled embeddings"},
    Unbuilt{"residual_multiplier", "scaled residuals"},
};

bool is_off(const nlohmann::ordered_json& value) {
  return value.is_null() || value == false || (value.is_number() && value == 0) ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

}  // namespace

std::vector<std::string> unbuilt_settings() {
  std::vector<std::string> names;
  for (const Unbuilt& setting : kMustBeOff) names.emplace_back(setting.key);
  for (const Unbuilt& setting : kMustBeOne) names.emplace_back(setting.key);
  return names;
}

void refuse_unbuilt_settings(const io::JsonView& document) {
  for (const Unbuilt& setting : kMustBeOff) {
    const auto found = document.find(setting.key);
    if (found && !is_off(found->json())) {
      found->fail(concat("asks for ", setting.meaning,
                         ", which is not built; only models without it can be used"));
    }
  }
  for (const Unbuilt& setting : kMustBeOne) {
    const auto found = document.find(setting.key);
    // pretraining_tp 0 and 1 both mean off.
    if (found && !(found->json().is_number() && found->json() == 1) && !is_off(found->json())) {
      found->fail(concat("asks for ", setting.meaning,
                         ", which is not built; only 1 or a missing value can be used"));
    }
  }
}

}  // namespace shardwise::models
