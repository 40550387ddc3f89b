// Llama (Touvron et al. 2023, https://arxiv.org/abs/2302.13971) and the models that differ from it
// by a bias or a norm, as transformers' *ForCausalLM compute them.
#include <ATen/ATen.h>

#include <cmath>

#include "shardwise/models/activation.h"
#include "shardwise/models/layer_parts.h"
#include "shardwise/models/rope.h"

namespace shardwise::models {
namespace {

// Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467.
struct RmsNorm {
  at::Tensor weight;
  double epsilon;

  RmsNorm(std::int64_t size, double epsilon, at::Device device)
      : weight(new_parameter({size}, device)), epsilon(epsilon) {}

  // Under a name of its own x's uses inside, where torch composes the norm, add up before they meet
  // the gradient of the residual: the same sum whether or not the norm is recomputed apart.
  at::Tensor forward(const at::Tensor& x) const {
    return at::rms_norm(at::alias(x), weight.sizes(), weight, epsilon);
  }
  Result forward(const at::Tensor& x, const PassContext& context) const {
    return cheap({x}, {weight}, context, [norm = *this](const std::vector<at::Tensor>& inputs) {
      return norm.forward(inputs[0]);
    });
  }
};

class Embedding : public Layer {
 public:
  Embedding(const ModelConfig& config, at::Device device)
      : weight_(new_parameter({config.vocabulary, config.hidden}, device)),
        padding_row_(config.padding_row) {}

  const at::Tensor& weight() const { return weight_; }
  std::string name() const override { return "model.embed_tokens"; }
  std::vector<NamedParameter> parameters() const override {
    return {{"model.embed_tokens.weight", weight_}};
  }
  at::Tensor forward(const at::Tensor& input, const PassContext&) const override {
    return at::embedding(weight_, input, padding_row_);
  }

 private:
  at::Tensor weight_;  // [vocabulary, hidden]
  std::int64_t padding_row_;
};

class Attention {
 public:
  Attention(const ModelConfig& config, std::shared_ptr<const Rope> rope, at::Device device)
      : head_dim_(config.attention.head_dim),
        dropout_(config.dropout.attention),
        rope_(std::move(rope)),
        q_(config.hidden, config.attention.heads * config.attention.head_dim,
           config.attention.qkv_bias, device),
        k_(config.hidden, config.attention.kv_heads * config.attention.head_dim,
           config.attention.qkv_bias, device),
        v_(config.hidden, config.attention.kv_heads * config.attention.head_dim,
           config.attention.qkv_bias, device),
        output_(config.attention.heads * config.attention.head_dim, config.hidden,
                config.attention.output_bias, device) {
    if (config.attention.qk_norm) {
      q_norm_.emplace(config.attention.head_dim, config.norm_epsilon, device);
      k_norm_.emplace(config.attention.head_dim, config.norm_epsilon, device);
    }
  }

  // In the order in which they lie in memory: q, k and v side by side.
  void append_parameters(const std::string& prefix, std::vector<NamedParameter>& all) const {
    all.push_back({prefix + ".q_proj.weight", q_.weight});
    all.push_back({prefix + ".k_proj.weight", k_.weight});
    all.push_back({prefix + ".v_proj.weight", v_.weight});
    if (q_.bias.defined()) {
      all.push_back({prefix + ".q_proj.bias", q_.bias});
      all.push_back({prefix + ".k_proj.bias", k_.bias});
      all.push_back({prefix + ".v_proj.bias", v_.bias});
    }
    all.push_back({prefix + ".o_proj.weight", output_.weight});
    if (output_.bias.defined()) {
      all.push_back({prefix + ".o_proj.bias", output_.bias});
    }
    if (q_norm_) {
      all.push_back({prefix + ".q_norm.weight", q_norm_->weight});
      all.push_back({prefix + ".k_norm.weight", k_norm_->weight});
    }
  }

  at::Tensor forward(const Result& x, const PassContext& context) const {
    at::Tensor q = split_heads(q_.forward(x), head_dim_);
    at::Tensor k = split_heads(k_.forward(x), head_dim_);
    const at::Tensor v = split_heads(v_.forward(x), head_dim_);
    if (q_norm_) {
      q = q_norm_->forward(q, context).value();
      k = k_norm_->forward(k, context).value();
    }
    const RopeTables tables = rope_->tables(q.size(2), q.device(), q.scalar_type());
    const double scale = 1 / std::sqrt(static_cast<double>(head_dim_));
    return output_.forward(causal_attention(rotate(q, tables), rotate(k, tables), v, scale,
                                            context.training ? dropout_ : 0));
  }

 private:
  std::int64_t head_dim_;
  double dropout_;
  std::shared_ptr<const Rope> rope_;
  Linear q_, k_, v_, output_;
  std::optional<RmsNorm> q_norm_, k_norm_;  // over each head
};

class Mlp {
 public:
  Mlp(const ModelConfig& config, at::Device device)
      : activation_(find_activation(config.mlp.activation)),
        gate_(config.hidden, config.mlp.inner, config.mlp.bias, device),
        up_(config.hidden, config.mlp.inner, config.mlp.bias, device),
        down_(config.mlp.inner, config.hidden, config.mlp.bias, device) {}

  // In the order in which they lie in memory: gate and up side by side.
  void append_parameters(const std::string& prefix, std::vector<NamedParameter>& all) const {
    all.push_back({prefix + ".gate_proj.weight", gate_.weight});
    all.push_back({prefix + ".up_proj.weight", up_.weight});
    if (gate_.bias.defined()) {
      all.push_back({prefix + ".gate_proj.bias", gate_.bias});
      all.push_back({prefix + ".up_proj.bias", up_.bias});
    }
    all.push_back({prefix + ".down_proj.weight", down_.weight});
    if (down_.bias.defined()) {
      all.push_back({prefix + ".down_proj.bias", down_.bias});
    }
  }

  at::Tensor forward(const Result& x, const PassContext& context) const {
    return down_.forward(cheap({gate_.forward(x), up_.forward(x)}, {}, context,
                               [activation = activation_](const std::vector<at::Tensor>& inputs) {
                                 return activation(inputs[0]) * inputs[1];
                               }));
  }

 private:
  Activation activation_;
  Linear gate_, up_, down_;
};

class Block : public Layer {
 public:
  Block(const ModelConfig& config, std::int64_t index, std::shared_ptr<const Rope> rope,
        at::Device device)
      : name_("model.layers." + std::to_string(index)),
        input_norm_(config.hidden, config.norm_epsilon, device),
        attention_(config, std::move(rope), device),
        mlp_norm_(config.hidden, config.norm_epsilon, device),
        mlp_(config, device) {}

  std::string name() const override { return name_; }
  std::vector<NamedParameter> parameters() const override {
    std::vector<NamedParameter> all{{name_ + ".input_layernorm.weight", input_norm_.weight}};
    attention_.append_parameters(name_ + ".self_attn", all);
    all.push_back({name_ + ".post_attention_layernorm.weight", mlp_norm_.weight});
    mlp_.append_parameters(name_ + ".mlp", all);
    return all;
  }
  at::Tensor forward(const at::Tensor& input, const PassContext& context) const override {
    const at::Tensor x = input + attention_.forward(input_norm_.forward(input, context), context);
    return x + mlp_.forward(mlp_norm_.forward(x, context), context);
  }

 private:
  std::string name_;
  RmsNorm input_norm_;
  Attention attention_;
  RmsNorm mlp_norm_;
  Mlp mlp_;
};

class FinalNorm : public Layer {
 public:
  FinalNorm(const ModelConfig& config, at::Device device)
      : norm_(config.hidden, config.norm_epsilon, device) {}
  std::string name() const override { return "model.norm"; }
  std::vector<NamedParameter> parameters() const override {
    return {{"model.norm.weight", norm_.weight}};
  }
  at::Tensor forward(const at::Tensor& input, const PassContext&) const override {
    return norm_.forward(input);
  }

 private:
  RmsNorm norm_;
};

}  // namespace

std::vector<std::unique_ptr<Layer>> make_llama_layers(const ModelConfig& config,
                                                      at::Device device) {
  std::vector<std::unique_ptr<Layer>> layers;
  auto embedding = std::make_unique<Embedding>(config, device);
  const at::Tensor weight = embedding->weight();
  layers.push_back(std::move(embedding));
  const auto rope = std::make_shared<const Rope>(config);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    layers.push_back(std::make_unique<Block>(config, i, rope, device));
  }
  layers.push_back(std::make_unique<FinalNorm>(config, device));
  layers.push_back(make_head(config, weight, device));
  return layers;
}

}  // namespace shardwise::models
