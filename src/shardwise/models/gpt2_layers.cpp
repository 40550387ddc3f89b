// GPT-2 (Radford et al. 2019) as transformers' GPT2LMHeadModel computes it.
#include <ATen/ATen.h>

#include <cmath>

#include "shardwise/models/layer_parts.h"
#include "shardwise/ops/attention.h"
#include "shardwise/ops/embedding.h"

namespace shardwise::models {
namespace {

// A weight in GPT-2's own layout [in, out] ("Conv1D"), and its bias.
struct Projection {
  at::Tensor weight, bias;

  Projection(std::int64_t in, std::int64_t out, at::Device device)
      : weight(new_parameter({in, out}, device)), bias(new_parameter({out}, device)) {}

  at::Tensor forward(const Result& x, const PassContext& context) const {
    return projected(x, {.matrices = {weight}, .biases = {bias}, .input_first = true}, context.fp8);
  }
  void append_parameters(const std::string& name, std::vector<NamedParameter>& all) const {
    all.push_back({name + ".weight", weight});
    all.push_back({name + ".bias", bias});
  }
};

Norm layer_norm(const ModelConfig& config, at::Device device) {
  return {config.hidden, /*centred=*/true, config.norm_epsilon, device};
}

class Embedding : public Layer {
 public:
  Embedding(const ModelConfig& config, at::Device device)
      : tokens_(new_parameter({config.vocabulary, config.hidden}, device)),
        positions_(new_parameter({config.max_positions, config.hidden}, device)),
        dropout_(config.dropout.embedding) {}

  const at::Tensor& tokens() const { return tokens_; }
  std::string name() const override { return "transformer.embedding"; }
  std::vector<NamedParameter> parameters() const override {
    return {{"transformer.wte.weight", tokens_}, {"transformer.wpe.weight", positions_}};
  }
  at::Tensor forward(const at::Tensor& input, const PassContext& context) const override {
    const at::Tensor positions = context.documents
                                     ? ops::embedding(positions_, context.positions, /*padding=*/-1)
                                     : positions_.slice(0, 0, input.size(1));
    const at::Tensor sum = ops::embedding(tokens_, input, /*padding=*/-1) + positions;
    return at::dropout(sum, dropout_, context.training);
  }

 private:
  at::Tensor tokens_;     // [vocabulary, hidden]
  at::Tensor positions_;  // [max_positions, hidden]
  double dropout_;
};

double attention_scale(const ModelConfig& config, std::int64_t index) {
  const double scale =
      config.attention.scaled ? 1 / std::sqrt(static_cast<double>(config.attention.head_dim)) : 1.0;
  return config.attention.scaled_by_layer ? scale / static_cast<double>(index + 1) : scale;
}

class Block : public Layer {
 public:
  Block(const ModelConfig& config, std::int64_t index, at::Device device)
      : name_("transformer.h." + std::to_string(index)),
        attention_{.heads = config.attention.heads,
                   .kv_heads = config.attention.heads,
                   .head_dim = config.attention.head_dim,
                   .scale = attention_scale(config, index)},
        attention_dropout_(config.dropout.attention),
        residual_dropout_(config.dropout.residual),
        activation_(config.mlp.activation),
        norm_1_(layer_norm(config, device)),
        qkv_(config.hidden, 3 * config.hidden, device),
        output_(config.hidden, config.hidden, device),
        norm_2_(layer_norm(config, device)),
        up_(config.hidden, config.mlp.inner, device),
        down_(config.mlp.inner, config.hidden, device) {}

  std::string name() const override { return name_; }
  std::vector<NamedParameter> parameters() const override {
    std::vector<NamedParameter> all;
    norm_1_.append_parameters(name_ + ".ln_1", all);
    qkv_.append_parameters(name_ + ".attn.c_attn", all);
    output_.append_parameters(name_ + ".attn.c_proj", all);
    norm_2_.append_parameters(name_ + ".ln_2", all);
    up_.append_parameters(name_ + ".mlp.c_fc", all);
    down_.append_parameters(name_ + ".mlp.c_proj", all);
    return all;
  }
  at::Tensor forward(const at::Tensor& input, const PassContext& context) const override {
    const Normed first = norm_1_.before_branch(input, context);
    const Normed second =
        norm_2_.after_branch(attention(first.output, context), first.residual, context);
    const Result wide =
        activated(up_.forward(second.output, context), activation_, /*gated=*/false, context);
    const at::Tensor branch = down_.forward(wide, context);
    return second.residual + at::dropout(branch, residual_dropout_, context.training);
  }

 private:
  at::Tensor attention(const Result& x, const PassContext& context) const {
    ops::AttentionShape shape = attention_;
    shape.dropout = context.training ? attention_dropout_ : 0;
    const at::Tensor mixed =
        ops::causal_attention(qkv_.forward(x, context), shape, {.documents = context.documents});
    return at::dropout(output_.forward(mixed, context), residual_dropout_, context.training);
  }

  std::string name_;
  ops::AttentionShape attention_;
  double attention_dropout_, residual_dropout_;
  std::string activation_;
  Norm norm_1_;
  Projection qkv_;  // q, k and v side by side
  Projection output_;
  Norm norm_2_;
  Projection up_, down_;
};

class FinalNorm : public Layer {
 public:
  FinalNorm(const ModelConfig& config, at::Device device) : norm_(layer_norm(config, device)) {}
  std::string name() const override { return "transformer.ln_f"; }
  std::vector<NamedParameter> parameters() const override {
    std::vector<NamedParameter> all;
    norm_.append_parameters(name(), all);
    return all;
  }
  at::Tensor forward(const at::Tensor& input, const PassContext&) const override {
    return norm_.forward(input);
  }

 private:
  Norm norm_;
};

}  // namespace

std::vector<std::unique_ptr<Layer>> make_gpt2_layers(const ModelConfig& config, at::Device device) {
  std::vector<std::unique_ptr<Layer>> layers;
  auto embedding = std::make_unique<Embedding>(config, device);
  const at::Tensor tokens = embedding->tokens();
  layers.push_back(std::move(embedding));
  for (std::int64_t i = 0; i < config.layers; ++i) {
    layers.push_back(std::make_unique<Block>(config, i, device));
  }
  layers.push_back(std::make_unique<FinalNorm>(config, device));
  layers.push_back(make_head(config, tokens, device));
  return layers;
}

}  // namespace shardwise::models
