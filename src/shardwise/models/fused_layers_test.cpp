// Layers over a unit's flat buffer, where products are joined, against the same layers over
// parameters of their own. Both are held against transformers by tests/test_models.py.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <string>

#include "shardwise/base/check.h"
#include "shardwise/models/model.h"
#include "shardwise/models/projection.h"
#include "shardwise/params/gradient_sink.h"
#include "shardwise/params/registry.h"

namespace shardwise::models {
namespace {

struct Variant {
  const char* name;
  const char* settings;  // beside the sizes
};

constexpr const char* kGpt2Sizes =
    R"("vocab_size": 31, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4,
       "attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0, )";
constexpr const char* kLlamaSizes =
    R"("vocab_size": 31, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
       "num_attention_heads": 4, "max_position_embeddings": 16, "head_dim": 16, )";

constexpr Variant kVariants[] = {
    {"Gpt2", R"("model_type": "gpt2")"},
    {"Gpt2Untied", R"("model_type": "gpt2", "tie_word_embeddings": false)"},
    {"Gpt2Relu", R"("model_type": "gpt2", "activation_function": "relu")"},
    {"Grouped", R"("model_type": "llama", "num_key_value_heads": 2)"},
    {"OneKeyHead", R"("model_type": "llama", "num_key_value_heads": 1)"},
    {"EqualHeads", R"("model_type": "llama")"},
    {"Tied", R"("model_type": "llama", "tie_word_embeddings": true)"},
    {"Biases", R"("model_type": "llama", "attention_bias": true, "mlp_bias": true,
                  "num_key_value_heads": 2)"},
    {"Gelu", R"("model_type": "llama", "hidden_act": "gelu")"},
    {"GeluTanh", R"("model_type": "llama", "hidden_act": "gelu_pytorch_tanh")"},
    {"Relu", R"("model_type": "llama", "hidden_act": "relu")"},
    {"Qwen2", R"("model_type": "qwen2", "num_key_value_heads": 2)"},
    {"Qwen3", R"("model_type": "qwen3", "num_key_value_heads": 2)"},
    {"RopeLinear", R"("model_type": "llama", "rope_parameters": {"rope_type": "linear",
                      "factor": 3.0})"},
    {"RopeDynamic",
     R"("model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "factor": 2.5})"},
    {"RopeYarn", R"("model_type": "llama", "rope_parameters": {"rope_type": "yarn", "factor": 4.0,
                    "original_max_position_embeddings": 8})"},
    {"RopeLlama3", R"("model_type": "llama", "rope_parameters": {"rope_type": "llama3",
                      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 16})"},
};

Model make(const Variant& variant) {
  const std::string settings = variant.settings;
  const char* sizes = settings.find("gpt2") != std::string::npos ? kGpt2Sizes : kLlamaSizes;
  return make_model(
      read_model_config(io::JsonView::parse(concat("{", sizes, settings, "}"), "config.json")), 7);
}

at::Tensor some_tokens() { return (at::arange(26, at::kLong) * 7 % 31).view({2, 13}); }

// The parameters' storage lies in flat buffers while it lives.
params::Registry flatten(const Model& model) {
  return params::Registry(model.units(at::kFloat), params::RegistryOptions{});
}

std::map<std::string, at::Tensor> by_name(const Model& model) {
  std::map<std::string, at::Tensor> all;
  for (const NamedParameter& parameter : model.parameters()) {
    all[parameter.name] = parameter.tensor;
  }
  return all;
}

// The weights' members that a joined product needs.
std::vector<at::Tensor> members(const std::map<std::string, at::Tensor>& parameters,
                                const std::vector<std::string>& names) {
  std::vector<at::Tensor> all;
  for (const std::string& name : names) {
    all.push_back(parameters.at("model.layers.1." + name));
  }
  return all;
}

// fp32 sums in another order: some roundings of 2^-24 each, as between any two libraries.
void expect_near(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  const double error = (found - expected).abs().max().item<double>();
  EXPECT_LE(error, 1e-5 * expected.abs().max().item<double>() + 1e-8) << what;
}

class FusedLayers : public testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(All, FusedLayers, testing::ValuesIn(kVariants),
                         [](const auto& info) { return info.param.name; });

TEST_P(FusedLayers, EqualTheSameLayersOverParametersApart) {
  const Model apart = make(GetParam()), joined = make(GetParam());
  const params::Registry registry = flatten(joined);
  const at::Tensor tokens = some_tokens(), targets = next_token_targets(tokens);
  const auto parameters = by_name(joined);
  if (parameters.count("model.layers.1.mlp.up_proj.weight") > 0) {
    const std::vector<std::string> qkv{"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                       "self_attn.v_proj.weight"};
    const std::vector<std::string> wide{"mlp.gate_proj.weight", "mlp.up_proj.weight"};
    for (const auto& names : {qkv, wide}) {
      EXPECT_TRUE(side_by_side(members(parameters, names)).defined());
      EXPECT_FALSE(side_by_side(members(by_name(apart), names)).defined());
    }
  }
  expect_near(joined.logits(tokens), apart.logits(tokens), "logits");
  joined.loss(tokens, targets).backward();
  apart.loss(tokens, targets).backward();
  for (const auto& [name, parameter] : by_name(apart)) {
    ASSERT_TRUE(parameters.at(name).grad().defined()) << name;
    expect_near(parameters.at(name).grad(), parameter.grad(), name);
  }
}

TEST_P(FusedLayers, CheckpointingGivesTheSameBitsOverAFlatBuffer) {
  std::map<std::string, at::Tensor> plain;
  for (const char* setting : {"off", "selective", "full"}) {
    Model model = make(GetParam());
    const params::Registry registry = flatten(model);
    model.set_training(true);
    model.set_activation_checkpointing(setting);
    model.loss(some_tokens(), next_token_targets(some_tokens())).backward();
    for (const auto& [name, parameter] : by_name(model)) {
      const auto [expected, fresh] = plain.emplace(name, parameter.grad());
      EXPECT_TRUE(fresh || at::equal(parameter.grad(), expected->second)) << setting << name;
    }
  }
}

TEST_P(FusedLayers, ALossOfLogitsIsTheLoss) {
  const Model model = make(GetParam());
  const at::Tensor tokens = some_tokens(), targets = next_token_targets(tokens);
  const at::Tensor logits = model.logits(tokens).flatten(0, 1);
  const at::Tensor expected =
      at::cross_entropy_loss(logits, targets.flatten(), {}, at::Reduction::Mean, kNoTarget);
  expect_near(model.loss(tokens, targets), expected, "loss");
}

// Backward brings another factor than the one that was announced.
TEST_P(FusedLayers, AnnouncedFactorsDoNotChangeGradients) {
  const Model model = make(GetParam());
  const at::Tensor tokens = some_tokens(), targets = next_token_targets(tokens);
  std::vector<at::Tensor> leaves;
  for (const NamedParameter& parameter : model.parameters()) {
    leaves.push_back(parameter.tensor);
  }
  const auto expected = torch::autograd::grad({model.loss(tokens, targets) * 8}, leaves);
  for (const AnnouncedFactor& announced :
       {AnnouncedFactor{.factor = 8}, AnnouncedFactor{.factor = 0.5, .scale = at::full({}, 16.0F)},
        AnnouncedFactor{.factor = 3}}) {
    const at::Tensor loss = model.loss(tokens, targets, nullptr, announced);
    const auto found = torch::autograd::grad({loss * 8}, leaves);
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      expect_near(found[i], expected[i], model.parameters()[i].name);
    }
  }
}

// Some of the members of a joined product are frozen after the layout was made.
TEST(FusedProjections, MembersThatNeedNoGradientGetNone) {
  const Model model = make(kVariants[7]);
  const params::Registry registry = flatten(model);
  const auto parameters = by_name(model);
  const auto loss = [&] { return model.loss(some_tokens(), next_token_targets(some_tokens())); };
  const at::Tensor expected =
      torch::autograd::grad({loss()}, members(parameters, {"self_attn.v_proj.weight"}))[0];
  for (at::Tensor& frozen : members(
           parameters, {"self_attn.q_proj.weight", "mlp.up_proj.bias", "self_attn.k_proj.bias"})) {
    frozen.requires_grad_(false);
  }
  loss().backward();
  EXPECT_FALSE(members(parameters, {"self_attn.q_proj.weight"})[0].grad().defined());
  expect_near(members(parameters, {"self_attn.v_proj.weight"})[0].grad(), expected, "v_proj");
}

// Takes gradients as an engine does.
class Taker : public params::GradientSink {
 public:
  explicit Taker(std::vector<at::Tensor>& products) : products_(products) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& all) override {
    return all;
  }
  bool take_product(const std::vector<params::GradientSink*>& sinks,
                    const params::Product& product) override {
    EXPECT_EQ(sinks.size(), 3U);
    EXPECT_EQ(sinks[0], this);
    products_.push_back(at::empty({product.rows(), product.columns()}));
    product.write(products_.back(), /*add=*/false);
    return true;
  }

 private:
  std::vector<at::Tensor>& products_;
};

// q, k and v have takers; for what somebody asks autograd for, they are not used.
TEST(FusedProjections, GradientsAreHandedOverAsProducts) {
  const Model model = make(kVariants[3]);
  const params::Registry registry = flatten(model);
  const std::vector<at::Tensor> qkv =
      members(by_name(model),
              {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"});
  std::vector<at::Tensor> products;
  std::vector<std::shared_ptr<torch::autograd::Node>> kept;
  for (const at::Tensor& weight : qkv) {
    kept.push_back(torch::autograd::impl::grad_accumulator(weight));
    kept.back()->add_pre_hook(std::make_unique<Taker>(products));
  }
  const auto loss = [&] { return model.loss(some_tokens(), next_token_targets(some_tokens())); };
  const at::Tensor expected = at::cat(torch::autograd::grad({loss()}, qkv));
  EXPECT_TRUE(products.empty());
  loss().backward();
  ASSERT_EQ(products.size(), 1U);
  EXPECT_TRUE(at::equal(products[0], expected));
  EXPECT_FALSE(qkv[0].grad().defined() || qkv[1].grad().defined() || qkv[2].grad().defined());
  EXPECT_TRUE(members(by_name(model), {"self_attn.o_proj.weight"})[0].grad().defined());
}

TEST(FusedProjections, AGapBetweenMembersLeavesThemApart) {
  const at::Tensor flat = at::arange(64, at::kFloat);
  const at::Tensor first = flat.narrow(0, 4, 8).view({2, 4});
  const at::Tensor next = flat.narrow(0, 12, 12).view({3, 4});
  const at::Tensor both = side_by_side({first, next});
  EXPECT_TRUE(at::equal(both, flat.narrow(0, 4, 20).view({5, 4})));
  EXPECT_EQ(both.const_data_ptr(), first.const_data_ptr());
  EXPECT_FALSE(side_by_side({next, first}).defined());
  EXPECT_FALSE(side_by_side({first, flat.narrow(0, 16, 8).view({2, 4})}).defined());
  EXPECT_FALSE(side_by_side({first, flat.narrow(0, 12, 10).view({2, 5})}).defined());
  EXPECT_FALSE(side_by_side({first, at::zeros({3, 4})}).defined());
}

}  // namespace
}  // namespace shardwise::models
