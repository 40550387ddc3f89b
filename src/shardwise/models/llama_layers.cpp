// Llama (Touvron et al. 2023, https://arxiv.org/abs/2302.13971) and the models that differ from it
// by a bias or a norm, as transformers' *ForCausalLM compute them.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "shardwise/models/layer_parts.h"
#include "shardwise/models/rope.h"
#include "shardwise/ops/attention.h"
#include "shardwise/ops/embedding.h"
#include "shardwise/ops/rope.h"

namespace shardwise::models {
namespace {

Norm rms_norm(const ModelConfig& config, std::int64_t size, at::Device device) {
  return {size, /*centred=*/false, config.norm_epsilon, device};
}

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
    return ops::embedding(weight_, input, padding_row_);
  }

 private:
  at::Tensor weight_;  // [vocabulary, hidden]
  std::int64_t padding_row_;
};

class Attention {
 public:
  Attention(const ModelConfig& config, std::int64_t index, std::shared_ptr<const Rope> rope,
            at::Device device)
      : shape_{.heads = config.attention.heads,
               .kv_heads = config.attention.kv_heads,
               .head_dim = config.attention.head_dim,
               .scale = 1 / std::sqrt(static_cast<double>(config.attention.head_dim))},
        dropout_(config.dropout.attention),
        window_(config.attention.window_of(index)),
        rope_(std::move(rope)),
        qkv_(config.hidden,
             {shape_.heads * shape_.head_dim, shape_.kv_heads * shape_.head_dim,
              shape_.kv_heads * shape_.head_dim},
             config.attention.qkv_bias, device),
        output_(shape_.heads * shape_.head_dim, {config.hidden}, config.attention.output_bias,
                device) {
    if (config.attention.qk_norm) {
      q_norm_.emplace(rms_norm(config, shape_.head_dim, device));
      k_norm_.emplace(rms_norm(config, shape_.head_dim, device));
    }
  }

  void append_parameters(const std::string& prefix, std::vector<NamedParameter>& all) const {
    qkv_.append_parameters({prefix + ".q_proj", prefix + ".k_proj", prefix + ".v_proj"}, all);
    output_.append_parameters({prefix + ".o_proj"}, all);
    if (q_norm_) {
      q_norm_->append_parameters(prefix + ".q_norm", all);
      k_norm_->append_parameters(prefix + ".k_norm", all);
    }
  }

  at::Tensor forward(const Result& x, const PassContext& context) const {
    const at::Tensor product = qkv_.forward(x, context);
    const at::Tensor rows = q_norm_ ? normed(product) : product;
    const std::int64_t sequence = rows.size(1);
    const std::int64_t longest =
        context.documents ? std::min(context.documents->longest, sequence) : sequence;
    const RopeTables tables = rope_->tables(sequence, longest, rows.device());
    ops::AttentionShape shape = shape_;
    shape.dropout = context.training ? dropout_ : 0;
    const at::Tensor turned =
        ops::rope_in_place(rows, tables.cosines, tables.sines, positions_of(context),
                           shape.heads + shape.kv_heads, shape.head_dim, /*interleaved=*/false);
    return output_.forward(
        ops::causal_attention(turned, shape, {.window = window_, .documents = context.documents}),
        context);
  }

 private:
  // None: those in the rows.
  static std::optional<at::Tensor> positions_of(const PassContext& context) {
    return context.documents ? std::optional(context.positions) : std::nullopt;
  }

  // Norms of each head of q and k.
  at::Tensor normed(const at::Tensor& rows) const {
    const std::vector<at::Tensor> parts =
        rows.unflatten(-1, {-1, shape_.head_dim})
            .split_with_sizes({shape_.heads, shape_.kv_heads, shape_.kv_heads}, -2);
    const at::Tensor q = q_norm_->forward(parts[0]), k = k_norm_->forward(parts[1]);
    return at::cat({q.flatten(-2), k.flatten(-2), parts[2].flatten(-2)}, -1);
  }

  ops::AttentionShape shape_;
  double dropout_;
  std::int64_t window_;  // as ops::CausalMask has it
  std::shared_ptr<const Rope> rope_;
  Linear qkv_, output_;
  std::optional<Norm> q_norm_, k_norm_;  // over each head
};

class Mlp {
 public:
  Mlp(const ModelConfig& config, at::Device device)
      : activation_(config.mlp.activation),
        gate_up_(config.hidden, {config.mlp.inner, config.mlp.inner}, config.mlp.bias, device),
        down_(config.mlp.inner, {config.hidden}, config.mlp.bias, device) {}

  void append_parameters(const std::string& prefix, std::vector<NamedParameter>& all) const {
    gate_up_.append_parameters({prefix + ".gate_proj", prefix + ".up_proj"}, all);
    down_.append_parameters({prefix + ".down_proj"}, all);
  }

  at::Tensor forward(const Result& x, const PassContext& context) const {
    const at::Tensor wide = gate_up_.forward(x, context);
    return down_.forward(activated(wide, activation_, /*gated=*/true, context), context);
  }

 private:
  std::string activation_;
  Linear gate_up_, down_;
};

class Block : public Layer {
 public:
  Block(const ModelConfig& config, std::int64_t index, std::shared_ptr<const Rope> rope,
        at::Device device)
      : name_("model.layers." + std::to_string(index)),
        input_norm_(rms_norm(config, config.hidden, device)),
        attention_(config, index, std::move(rope), device),
        mlp_norm_(rms_norm(config, config.hidden, device)),
        mlp_(config, device) {}

  std::string name() const override { return name_; }
  std::vector<NamedParameter> parameters() const override {
    std::vector<NamedParameter> all;
    input_norm_.append_parameters(name_ + ".input_layernorm", all);
    attention_.append_parameters(name_ + ".self_attn", all);
    mlp_norm_.append_parameters(name_ + ".post_attention_layernorm", all);
    mlp_.append_parameters(name_ + ".mlp", all);
    return all;
  }
  at::Tensor forward(const at::Tensor& input, const PassContext& context) const override {
    const Normed first = input_norm_.before_branch(input, context);
    const Normed second =
        mlp_norm_.after_branch(attention_.forward(first.output, context), first.residual, context);
    return second.residual + mlp_.forward(second.output, context);
  }

 private:
  std::string name_;
  Norm input_norm_;
  Attention attention_;
  Norm mlp_norm_;
  Mlp mlp_;
};

class FinalNorm : public Layer {
 public:
  FinalNorm(const ModelConfig& config, at::Device device)
      : norm_(rms_norm(config, config.hidden, device)) {}
  std::string name() const override { return "model.norm"; }
  std::vector<NamedParameter> parameters() const override {
    return {{"model.norm.weight", norm_.weight}};
  }
  at::Tensor forward(const at::Tensor& input, const PassContext&) const override {
    return norm_.forward(input);
  }

 private:
  Norm norm_;
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
