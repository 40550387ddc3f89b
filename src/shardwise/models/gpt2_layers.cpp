// GPT-2 (Radford et al. 2019) as transformers' GPT2LMHeadModel computes it.
#include <ATen/ATen.h>

#include <cmath>

#include "shardwise/models/activation.h"
#include "shardwise/models/layer_parts.h"

namespace shardwise::models {
namespace {

// A weight in GPT-2's own layout [in, out] ("Conv1D"), and its bias.
struct Projection {
  at::Tensor weight, bias;

  Projection(std::int64_t in, std::int64_t out, at::Device device)
      : weight(new_parameter({in, out}, device)), bias(new_parameter({out}, device)) {}

  at::Tensor forward(const Result& x) const { return projected(x, weight, bias); }
};

struct LayerNorm {
  at::Tensor weight, bias;
  double epsilon;

  LayerNorm(const ModelConfig& config, at::Device device)
      : weight(new_parameter({config.hidden}, device)),
        bias(new_parameter({config.hidden}, device)),
        epsilon(config.norm_epsilon) {}

  at::Tensor forward(const at::Tensor& x) const {
    return at::layer_norm(x, weight.sizes(), weight, bias, epsilon);
  }
  Result forward(const at::Tensor& x, const PassContext& context) const {
    return cheap(
        {x}, {weight, bias}, context,
        [norm = *this](const std::vector<at::Tensor>& inputs) { return norm.forward(inputs[0]); });
  }
};

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
    const at::Tensor places = at::arange(input.size(1), input.options());
    const at::Tensor sum = at::embedding(tokens_, input) + at::embedding(positions_, places);
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
        head_dim_(config.attention.head_dim),
        scale_(attention_scale(config, index)),
        attention_dropout_(config.dropout.attention),
        residual_dropout_(config.dropout.residual),
        activation_(find_activation(config.mlp.activation)),
        norm_1_(config, device),
        qkv_(config.hidden, 3 * config.hidden, device),
        output_(config.hidden, config.hidden, device),
        norm_2_(config, device),
        up_(config.hidden, config.mlp.inner, device),
        down_(config.mlp.inner, config.hidden, device) {}

  std::string name() const override { return name_; }
  std::vector<NamedParameter> parameters() const override {
    return {{name_ + ".ln_1.weight", norm_1_.weight},
            {name_ + ".ln_1.bias", norm_1_.bias},
            {name_ + ".attn.c_attn.weight", qkv_.weight},
            {name_ + ".attn.c_attn.bias", qkv_.bias},
            {name_ + ".attn.c_proj.weight", output_.weight},
            {name_ + ".attn.c_proj.bias", output_.bias},
            {name_ + ".ln_2.weight", norm_2_.weight},
            {name_ + ".ln_2.bias", norm_2_.bias},
            {name_ + ".mlp.c_fc.weight", up_.weight},
            {name_ + ".mlp.c_fc.bias", up_.bias},
            {name_ + ".mlp.c_proj.weight", down_.weight},
            {name_ + ".mlp.c_proj.bias", down_.bias}};
  }
  at::Tensor forward(const at::Tensor& input, const PassContext& context) const override {
    const at::Tensor x = input + attention(norm_1_.forward(input, context), context);
    const Result wide = cheap({up_.forward(norm_2_.forward(x, context))}, {}, context,
                              [activation = activation_](const std::vector<at::Tensor>& inputs) {
                                return activation(inputs[0]);
                              });
    return x + at::dropout(down_.forward(wide), residual_dropout_, context.training);
  }

 private:
  at::Tensor attention(const Result& x, const PassContext& context) const {
    const std::vector<at::Tensor> qkv = qkv_.forward(x).chunk(3, -1);
    const double dropout = context.training ? attention_dropout_ : 0;
    const at::Tensor mixed =
        causal_attention(split_heads(qkv[0], head_dim_), split_heads(qkv[1], head_dim_),
                         split_heads(qkv[2], head_dim_), scale_, dropout);
    return at::dropout(output_.forward(mixed), residual_dropout_, context.training);
  }

  std::string name_;
  std::int64_t head_dim_;
  double scale_, attention_dropout_, residual_dropout_;
  Activation activation_;
  LayerNorm norm_1_;
  Projection qkv_;  // q, k and v side by side
  Projection output_;
  LayerNorm norm_2_;
  Projection up_, down_;
};

class FinalNorm : public Layer {
 public:
  FinalNorm(const ModelConfig& config, at::Device device) : norm_(config, device) {}
  std::string name() const override { return "transformer.ln_f"; }
  std::vector<NamedParameter> parameters() const override {
    return {{"transformer.ln_f.weight", norm_.weight}, {"transformer.ln_f.bias", norm_.bias}};
  }
  at::Tensor forward(const at::Tensor& input, const PassContext&) const override {
    return norm_.forward(input);
  }

 private:
  LayerNorm norm_;
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
