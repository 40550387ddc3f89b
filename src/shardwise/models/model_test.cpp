#include "shardwise/models/model.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <thread>

#include "shardwise/base/error.h"

namespace shardwise::models {
namespace {

constexpr const char* kGpt2 = R"({"model_type": "gpt2", "vocab_size": 31, "n_positions": 16,
  "n_embd": 8, "n_layer": 2, "n_head": 2, "attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0})";
constexpr const char* kQwen2 = R"({"model_type": "qwen2", "vocab_size": 31, "hidden_size": 16,
  "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 16, "tie_word_embeddings": false})";

Model make(const char* text) {
  return make_model(read_model_config(io::JsonView::parse(text, "config.json")), /*seed=*/7);
}

at::Tensor some_tokens(std::int64_t batch, std::int64_t sequence) {
  return (at::arange(batch * sequence, at::kLong) * 7 % 31).view({batch, sequence});
}

class ModelFamilies : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ModelFamilies, testing::Values(kGpt2, kQwen2));

// Notes what it hears; hands out marked inputs in place of the given ones.
class Recorder : public params::UnitEvents {
 public:
  void begin_pass() override { heard.push_back("begin"); }
  std::vector<at::Tensor> before_forward(int unit, const std::vector<at::Tensor>& inputs) override {
    heard.push_back("before " + std::to_string(unit) + " " + std::to_string(inputs.size()));
    if (inputs.empty() || unit != cut_before) {
      return {};
    }
    return {inputs[0].detach().requires_grad_()};
  }
  void after_forward(int unit, const std::vector<at::Tensor>& outputs) override {
    heard.push_back("after " + std::to_string(unit) + " " + std::to_string(outputs.size()));
  }

  std::vector<std::string> heard;
  int cut_before = -1;
};

TEST_P(ModelFamilies, EventsComeAroundEveryLayer) {
  const Model model = make(GetParam());
  Recorder recorder;
  (void)model.loss(some_tokens(2, 5), next_token_targets(some_tokens(2, 5)), &recorder);
  std::vector<std::string> expected{"begin", "before 0 0", "after 0 1"};  // tokens have no gradient
  for (std::size_t i = 1; i < model.layers().size(); ++i) {
    expected.push_back("before " + std::to_string(i) + " 1");
    expected.push_back("after " + std::to_string(i) + " 1");
  }
  EXPECT_EQ(recorder.heard, expected);
}

TEST_P(ModelFamilies, InputsHandedOutByTheListenerAreUsed) {
  const Model model = make(GetParam());
  Recorder recorder;
  recorder.cut_before = 2;  // the second block
  const at::Tensor tokens = some_tokens(2, 5);
  const at::Tensor logits = model.logits(tokens, &recorder);
  EXPECT_TRUE(at::equal(logits, model.logits(tokens)));
  logits.sum().backward();
  for (const NamedParameter& parameter : model.layers()[1]->parameters()) {
    EXPECT_FALSE(parameter.tensor.grad().defined()) << parameter.name;
  }
  for (const NamedParameter& parameter : model.layers()[2]->parameters()) {
    EXPECT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
  }
}

TEST_P(ModelFamilies, UnitsAreTheLayersWithEveryParameterOnce) {
  const Model model = make(GetParam());
  const auto units = model.units(at::kBFloat16);
  ASSERT_EQ(units.size(), model.layers().size());
  std::int64_t elements = 0;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < units.size(); ++i) {
    EXPECT_EQ(units[i].name, model.layers()[i]->name());
    for (const params::ParameterSpec& parameter : units[i].parameters) {
      EXPECT_TRUE(parameter.tensor.is_leaf() && parameter.tensor.requires_grad());
      EXPECT_EQ(parameter.dtype, at::kBFloat16);
      elements += parameter.tensor.numel();
      names.push_back(parameter.name);
    }
  }
  EXPECT_EQ(elements, model.parameter_count());
  EXPECT_EQ(names.size(), model.parameters().size());
}

std::vector<at::Tensor> values_when_taken(const char* text, bool from_the_end) {
  const ModelConfig config = read_model_config(io::JsonView::parse(text, "config.json"));
  const Model model = make_model_for(at::kCPU, config, /*seed=*/7);
  std::vector<std::shared_ptr<params::ValueSource>> sources;
  for (const params::UnitSpec& unit : model.units(at::kBFloat16)) {
    for (const params::ParameterSpec& parameter : unit.parameters) {
      sources.push_back(parameter.source);
    }
  }
  std::vector<at::Tensor> values(sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::size_t at = from_the_end ? sources.size() - 1 - i : i;
    EXPECT_FALSE(sources[at]->same_on_all_ranks());
    values[at] = sources[at]->take();
  }
  return values;
}

TEST_P(ModelFamilies, ValuesThatComeLaterAreTheSameInAnyOrder) {
  const Model model = make(GetParam());
  const std::vector<NamedParameter> expected = model.parameters();
  for (bool from_the_end : {false, true}) {
    const std::vector<at::Tensor> values = values_when_taken(GetParam(), from_the_end);
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(at::equal(values[i], expected[i].tensor)) << expected[i].name;
    }
  }
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0;
  std::int64_t resident = 0;
  file >> size >> resident;
  return resident * 4096;
}

TEST(ModelUnits, ValuesThatComeLaterTakeNoMemoryBefore) {
  constexpr const char* kWide = R"({"model_type": "llama", "vocab_size": 65536,
    "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 1,
    "num_attention_heads": 8, "max_position_embeddings": 16, "tie_word_embeddings": false})";
  const ModelConfig config = read_model_config(io::JsonView::parse(kWide, "config.json"));
  const std::int64_t before = resident_bytes();
  const Model model = make_model_for(at::kCPU, config, /*seed=*/7);
  const std::int64_t head = std::int64_t{65536} * 512 * 4;
  EXPECT_LT(resident_bytes() - before, head / 8);
  (void)model.units(at::kFloat).front().parameters.front().source->take();
  EXPECT_GT(resident_bytes() - before, head / 2);
}

TEST(ModelUnits, ATiedHeadUsesTheEmbedding) {
  const auto units = make(kGpt2).units(at::kFloat);
  EXPECT_TRUE(units.back().parameters.empty());
  EXPECT_EQ(units.back().uses, std::vector<int>{0});
  EXPECT_EQ(units.front().parameters[0].aliases, std::vector<std::string>{"lm_head.weight"});
  const auto untied = make(kQwen2).units(at::kFloat);
  EXPECT_EQ(untied.back().parameters.size(), 1U);
  EXPECT_TRUE(untied.back().uses.empty());
  EXPECT_TRUE(untied.front().parameters[0].aliases.empty());
}

TEST(ModelUnits, WeightsUsedTogetherLieSideBySide) {
  std::vector<std::string> names;
  const auto units = make(kQwen2).units(at::kFloat);
  for (const params::ParameterSpec& parameter : units[1].parameters) {
    names.push_back(parameter.name);
  }
  const std::string attention = "model.layers.0.self_attn.", mlp = "model.layers.0.mlp.";
  const std::vector<std::string> expected{"model.layers.0.input_layernorm.weight",
                                          attention + "q_proj.weight",
                                          attention + "k_proj.weight",
                                          attention + "v_proj.weight",
                                          attention + "q_proj.bias",
                                          attention + "k_proj.bias",
                                          attention + "v_proj.bias",
                                          attention + "o_proj.weight",
                                          "model.layers.0.post_attention_layernorm.weight",
                                          mlp + "gate_proj.weight",
                                          mlp + "up_proj.weight",
                                          mlp + "down_proj.weight"};
  EXPECT_EQ(names, expected);
}

// The engine replaces the leaves' data, in another dtype where it trains in one.
TEST_P(ModelFamilies, ParametersMayChangeTheirDtype) {
  const Model model = make(GetParam());
  const at::Tensor tokens = some_tokens(2, 9);
  const at::Tensor expected = model.logits(tokens);
  for (NamedParameter& parameter : model.parameters()) {
    parameter.tensor.set_data(parameter.tensor.detach().to(at::kBFloat16));
  }
  const at::Tensor logits = model.logits(tokens);
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  const double error = (logits.to(at::kFloat) - expected).abs().max().item<double>();
  EXPECT_LT(error, 0.05 * expected.abs().max().item<double>());  // some roundings of 2^-9 each
  EXPECT_EQ(model.loss(tokens, next_token_targets(tokens)).scalar_type(), at::kFloat);
}

TEST(ModelUnits, Fp8NamesMatricesThatDoNotFitAndNeedsOneThatDoes) {
  EXPECT_THROW((void)make(kGpt2).set_fp8("rowwise"), ConfigError);  // of width 8
  EXPECT_TRUE(make(kGpt2).set_fp8("off").empty());
  const std::vector<std::string> misfits = make(kQwen2).set_fp8("rowwise");
  EXPECT_NE(std::find(misfits.begin(), misfits.end(), "model.layers.0.mlp.up_proj.weight"),
            misfits.end());
  EXPECT_EQ(std::find(misfits.begin(), misfits.end(), "model.layers.0.self_attn.q_proj.weight"),
            misfits.end());
}

TEST(ModelTokens, EveryTokenButTheFirstOfADocumentIsPredicted) {
  const at::Tensor ids = some_tokens(2, 6);
  EXPECT_EQ(Tokens(ids).predicted(), 10);
  const at::Tensor offsets = at::tensor({0, 0, 4, 6, 6, 11, 12, 12}, at::kInt);  // 4, 2, 5, 1
  EXPECT_EQ(Tokens(ids, ops::Documents{offsets, 5}).predicted(), 8);
}

TEST_P(ModelFamilies, LaterTokensDoNotChangeEarlierLogits) {
  const Model model = make(GetParam());
  const at::Tensor tokens = some_tokens(1, 12);
  const at::Tensor whole = model.logits(tokens).slice(1, 0, 4);
  EXPECT_TRUE(at::allclose(whole, model.logits(tokens.slice(1, 0, 4)), 1e-5, 1e-6));
}

TEST(ModelPasses, AnInferencePassDoesNotSpoilTheNextTrainingPass) {
  const Model model = make(kQwen2);
  const at::Tensor tokens = some_tokens(2, 6);
  {
    const c10::InferenceMode inference;
    (void)model.logits(tokens);
  }
  model.loss(tokens, next_token_targets(tokens)).backward();
  EXPECT_TRUE(model.parameters()[1].tensor.grad().defined());
}

TEST(ModelPasses, ThreadsShareAModel) {
  const Model model = make(kQwen2);
  std::vector<at::Tensor> expected(4), found(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    expected[i] = model.logits(some_tokens(1, 3 + i)).detach();
  }
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        found[i] = model.logits(some_tokens(1, 3 + i)).detach();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i]));
  }
}

TEST(Targets, AreTheNextTokens) {
  const at::Tensor tokens = at::arange(6, at::kLong).view({2, 3});
  const at::Tensor expected = at::tensor({1, 2, -100, 4, 5, -100}, at::kLong).view({2, 3});
  EXPECT_TRUE(at::equal(next_token_targets(tokens), expected));
}

// Folders

class ModelFolders : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "shardwise-models-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  // Not std::filesystem::remove_all: libtorch exports a copy of it that calls a null pointer.
  void TearDown() override {
    for (const char* name : {"/config.json", "/model.safetensors", ""}) {
      (void)::remove((folder_ + name).c_str());
    }
  }
  std::string folder_;
};

TEST_F(ModelFolders, WhatIsSavedIsLoaded) {
  for (const char* text : {kGpt2, kQwen2}) {
    const Model model = make(text);
    save_model(folder_, model.config(), model.parameters());
    const std::vector<NamedParameter> back = load_model(folder_).parameters();
    const std::vector<NamedParameter> all = model.parameters();
    ASSERT_EQ(back.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(back[i].name, all[i].name);
      EXPECT_TRUE(at::equal(back[i].tensor, all[i].tensor)) << all[i].name;
      EXPECT_TRUE(back[i].tensor.is_leaf() && back[i].tensor.requires_grad());
    }
  }
}

TEST_F(ModelFolders, SavingNeedsEveryParameterOnceInItsShape) {
  const Model model = make(kGpt2);
  const std::vector<NamedParameter> all = model.parameters();
  std::vector<NamedParameter> weights(all.begin(), all.end() - 1);
  EXPECT_THROW(save_model(folder_, model.config(), weights), UsageError);
  weights = all;
  weights.push_back({"extra", at::zeros({1})});
  EXPECT_THROW(save_model(folder_, model.config(), weights), UsageError);
  weights = all;
  weights.push_back(all[0]);
  EXPECT_THROW(save_model(folder_, model.config(), weights), UsageError);
  weights = all;
  weights[3].tensor = at::zeros({2, 2});
  EXPECT_THROW(save_model(folder_, model.config(), weights), UsageError);
  weights[3].tensor = at::zeros(all[3].tensor.sizes(), at::kInt);
  EXPECT_THROW(save_model(folder_, model.config(), weights), UsageError);
  EXPECT_FALSE(std::ifstream(folder_ + "/config.json").good());
}

TEST(ModelConfigs, CountParametersAsTheLayersHaveThem) {
  for (const char* text : {kGpt2, kQwen2}) {
    const Model model = make(text);
    const std::vector<NamedParameter> all = model.parameters();
    EXPECT_EQ(parameter_count(model.config()),
              std::accumulate(all.begin(), all.end(), std::int64_t{0},
                              [](std::int64_t sum, const NamedParameter& parameter) {
                                return sum + parameter.tensor.numel();
                              }));
  }
}

}  // namespace
}  // namespace shardwise::models
