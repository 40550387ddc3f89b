// Source of fields and defaults: transformers, modeling_rope_utils.py.
#include <array>
#include <cmath>
#include <string>

#include "shardwise/base/check.h"
#include "shardwise/models/family_config.h"

namespace shardwise::models {
namespace {

struct Kind {
  const char* name;
  RopeScaling scaling;
};

constexpr std::array kKinds{
    Kind{"default", RopeScaling::kNone},      Kind{"linear", RopeScaling::kLinear},
    Kind{"dynamic", RopeScaling::kDynamic},   Kind{"yarn", RopeScaling::kYarn},
    Kind{"longrope", RopeScaling::kLongRope}, Kind{"llama3", RopeScaling::kLlama3},
};

constexpr double kMaxFactor = 1e9;  // far beyond any context there is
constexpr double kMaxTheta = 1e30;  // its powers below 1 stay finite in fp32

// The object with the settings: "rope_scaling" of older files goes before "rope_parameters", an
// empty one does not count.
std::optional<io::JsonView> settings_of(const io::JsonView& document) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto found = document.find(key);
    if (found && !found->json().is_object()) {
      found->fail("is no object; allowed: an object with rope_type, or null");
    }
    if (found && !found->json().empty()) {
      return found;
    }
  }
  return std::nullopt;
}

RopeScaling scaling_of(const io::JsonView& settings) {
  const auto found = settings.has("rope_type") ? settings.find("rope_type") : settings.find("type");
  if (!found) {
    return RopeScaling::kNone;
  }
  const std::string name = found->string();
  for (const Kind& kind : kKinds) {
    if (name == kind.name) {
      return kind.scaling;
    }
  }
  found->fail("no kind of scaling '" + name +
              "'; there are default, linear, dynamic, yarn, longrope and llama3");
}

void refuse_unbuilt(const io::JsonView& settings) {
  const auto part = settings.find("partial_rotary_factor");
  if (part && part->number() != 1) {
    part->fail("asks for rotary embedding of a part of the head, which is not built; only 1 is");
  }
  if (const auto sections = settings.find("mrope_section")) {
    sections->fail("multimodal rotary embedding is not built");
  }
  for (const auto& [key, value] : settings.members()) {
    if (value.json().is_object()) {
      value.fail("settings by layer type are not built; give one set for all layers");
    }
  }
}

double factor_of(const io::JsonView& settings) {
  const double factor = settings.at("factor").number();
  if (factor <= 0 || factor > kMaxFactor) {
    settings.at("factor").fail(
        concat(factor, " is out of range; allowed: above 0 to ", kMaxFactor));
  }
  return factor;
}

// Phi-3 and models like it keep it outside of the settings, and that goes first.
std::int64_t original_max_positions_of(const io::JsonView& document, const io::JsonView& settings,
                                       const ModelConfig& config) {
  const char* key = "original_max_position_embeddings";
  const io::JsonView& holder = document.has(key) ? document : settings;
  return holder.integer_or(key, config.max_positions, 2, kMaxPositions);
}

double positive(const io::JsonView& settings, const char* key, double fallback, double most) {
  const double value = number_within(settings, key, fallback, 0, most);
  if (value <= 0) {
    settings.at(key).fail("must be above 0");
  }
  return value;
}

double magnitude_scale(double scale, double weight) {
  return scale <= 1 ? 1.0 : 0.1 * weight * std::log(scale) + 1.0;
}

// YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071), section 3.
void read_yarn(const io::JsonView& settings, const ModelConfig& config, RopeConfig& rope) {
  // An explicit null, as DeepSeek's files have it, means the ratio of the two lengths.
  const bool by_ratio = !settings.has("factor") && settings.json().contains("factor");
  rope.factor = by_ratio ? static_cast<double>(config.max_positions) /
                               static_cast<double>(rope.original_max_positions)
                         : factor_of(settings);
  const double weight = number_within(settings, "mscale", 0, 0, kMaxFactor);
  const double all = number_within(settings, "mscale_all_dim", 0, 0, kMaxFactor);
  const double suggested = weight != 0 && all != 0 ? magnitude_scale(rope.factor, weight) /
                                                         magnitude_scale(rope.factor, all)
                                                   : magnitude_scale(rope.factor, 1);
  rope.attention_factor = number_within(settings, "attention_factor", suggested, 0, kMaxFactor);
  const double fast = number_within(settings, "beta_fast", 32, 0, kMaxFactor);
  const double slow = number_within(settings, "beta_slow", 1, 0, kMaxFactor);
  rope.beta_fast = fast == 0 ? 32 : fast;  // as transformers reads 0
  rope.beta_slow = slow == 0 ? 1 : slow;
  rope.truncate = settings.boolean_or("truncate", true);
  SW_USER_CHECK(DataError, rope.theta > 1, settings.source(), ": ", settings.field(),
                ".rope_theta: yarn needs a base above 1, not ", rope.theta);
}

std::vector<double> factors_of(const io::JsonView& settings, const char* key,
                               std::int64_t head_dim) {
  const io::JsonView list = settings.at(key);
  std::vector<double> factors;
  for (const io::JsonView& item : list.items()) {
    factors.push_back(item.number());
    if (factors.back() <= 0 || factors.back() > kMaxFactor) {
      item.fail(concat(factors.back(), " is out of range; allowed: above 0 to ", kMaxFactor));
    }
  }
  if (static_cast<std::int64_t>(factors.size()) != head_dim / 2) {
    list.fail(
        concat("has ", factors.size(), " numbers; half of head_dim ", head_dim, " are needed"));
  }
  return factors;
}

// LongRoPE (Ding et al. 2024, https://arxiv.org/abs/2402.13753).
void read_longrope(const io::JsonView& settings, const ModelConfig& config, RopeConfig& rope) {
  rope.short_factor = factors_of(settings, "short_factor", config.attention.head_dim);
  rope.long_factor = factors_of(settings, "long_factor", config.attention.head_dim);
  const double original = static_cast<double>(rope.original_max_positions);
  const double factor = settings.has("factor")
                            ? factor_of(settings)
                            : static_cast<double>(config.max_positions) / original;
  const double suggested = factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
  rope.attention_factor = number_within(settings, "attention_factor", suggested, 0, kMaxFactor);
}

void read_llama3(const io::JsonView& settings, RopeConfig& rope) {
  rope.factor = factor_of(settings);
  (void)settings.at("low_freq_factor");
  rope.low_freq_factor = positive(settings, "low_freq_factor", 1, kMaxFactor);
  rope.high_freq_factor = positive(settings, "high_freq_factor", 0, kMaxFactor);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    settings.at("high_freq_factor").fail("must be above low_freq_factor");
  }
}

double theta_of(const io::JsonView& document, const std::optional<io::JsonView>& settings) {
  const io::JsonView& holder = settings && settings->has("rope_theta") ? *settings : document;
  return positive(holder, "rope_theta", 10000, kMaxTheta);
}

}  // namespace

RopeConfig read_rope_config(const io::JsonView& document, const ModelConfig& config) {
  RopeConfig rope;
  const auto settings = settings_of(document);
  rope.theta = theta_of(document, settings);
  if (!settings) {
    return rope;
  }
  refuse_unbuilt(*settings);
  rope.scaling = scaling_of(*settings);
  rope.original_max_positions = original_max_positions_of(document, *settings, config);
  switch (rope.scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear: rope.factor = factor_of(*settings); break;
    case RopeScaling::kDynamic:
      rope.factor = factor_of(*settings);
      SW_USER_CHECK(DataError, config.attention.head_dim > 2, document.source(),
                    ": head_dim: dynamic rope scaling needs more than 2 elements a head");
      break;
    case RopeScaling::kYarn: read_yarn(*settings, config, rope); break;
    case RopeScaling::kLongRope: read_longrope(*settings, config, rope); break;
    case RopeScaling::kLlama3: read_llama3(*settings, rope); break;
  }
  return rope;
}

}  // namespace shardwise::models
