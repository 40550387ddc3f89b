#include "shardwise/models/layer_parts.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include "shardwise/base/check.h"

namespace shardwise::models {
namespace {

class Head : public Layer {
 public:
  Head(at::Tensor weight, bool tied) : weight_(std::move(weight)), tied_(tied) {}
  std::string name() const override { return "lm_head"; }
  std::vector<NamedParameter> parameters() const override {
    return tied_ ? std::vector<NamedParameter>{}
                 : std::vector<NamedParameter>{{"lm_head.weight", weight_}};
  }
  at::Tensor forward(const at::Tensor& input, const PassContext&) const override {
    return at::linear(input, weight_);
  }

 private:
  at::Tensor weight_;  // [vocabulary, hidden]
  bool tied_;
};

void check_memory(const ModelConfig& config) {
  const double needed = 4.0 * static_cast<double>(parameter_count(config));
  const double present =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  SW_USER_CHECK(DataError, needed <= present, config.source,
                ": vocab_size, hidden_size, layers and inner size: in fp32 the ",
                parameter_count(config), " parameters need ", needed / kGiB,
                " GiB and this machine has ", present / kGiB,
                " GiB of memory; use a smaller model or a larger machine");
}

}  // namespace

at::Tensor new_parameter(at::IntArrayRef sizes, at::Device device) {
  return at::empty(sizes, at::TensorOptions(at::kFloat).device(device)).requires_grad_();
}

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias, at::Device device)
    : weight(new_parameter({out, in}, device)) {
  if (with_bias) {
    bias = new_parameter({out}, device);
  }
}

at::Tensor Linear::forward(const Result& x) const { return projected(x, weight.t(), bias); }

Result cheap(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& leaves,
             const PassContext& context, const Computation& computation) {
  return context.recompute == Recompute::kCheapResults ? recomputed(inputs, leaves, computation)
                                                       : Result(computation(inputs));
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            double scale, double dropout) {
  const bool grouped = q.size(1) != k.size(1);
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, dropout, /*is_causal=*/true,
                                          scale, grouped)
      .transpose(1, 2)
      .flatten(2);
}

at::Tensor split_heads(const at::Tensor& x, std::int64_t head_dim) {
  return x.unflatten(-1, {-1, head_dim}).transpose(1, 2);
}

std::unique_ptr<Layer> make_head(const ModelConfig& config, const at::Tensor& embedding,
                                 at::Device device) {
  at::Tensor weight =
      config.tied ? embedding : new_parameter({config.vocabulary, config.hidden}, device);
  return std::make_unique<Head>(std::move(weight), config.tied);
}

std::vector<std::unique_ptr<Layer>> make_layers(const ModelConfig& config, at::Device device) {
  if (!device.is_meta()) {
    check_memory(config);
  }
  return config.family() == Family::kGpt2 ? make_gpt2_layers(config, device)
                                          : make_llama_layers(config, device);
}

}  // namespace shardwise::models
