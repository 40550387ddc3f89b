// Language models as ordered lists of layers: embedding, blocks, norm, head. Each layer is a unit
// of the engine; the same list serves pipeline stages and inference.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/models/model_config.h"
#include "shardwise/ops/documents.h"
#include "shardwise/ops/float8.h"
#include "shardwise/params/unit.h"
#include "shardwise/params/unit_events.h"

namespace shardwise::models {

// A parameter under its Hugging Face name, in Hugging Face's layout.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// Marks positions without a target, as Hugging Face has it.
inline constexpr std::int64_t kNoTarget = -100;

// What backward will probably multiply the loss with. The head makes its gradients with it in
// forward; another factor costs a pass over them.
struct AnnouncedFactor {
  double factor = 1.0;                             // one over the accumulation steps
  std::optional<at::Tensor> scale = std::nullopt;  // of the loss in fp16: fp32, on the device
};

// What backward computes again instead of keeping it.
enum class Recompute {
  kNothing,
  kCheapResults,  // of a block: all but matrix products and attention
  kBlocks         // everything in a block
};

// Rows of token ids. One document each, or several that do not see each other: positions begin
// anew with each of these.
struct Tokens {
  Tokens(at::Tensor ids, std::optional<ops::Documents> documents = std::nullopt)
      : ids(std::move(ids)), documents(std::move(documents)) {}

  Tokens to(at::Device device) const;
  // How many have a next one in their document. Waits for a GPU that holds the documents.
  std::int64_t predicted() const;

  at::Tensor ids;  // [batch, seq] int64
  std::optional<ops::Documents> documents;
};

// What a layer may need besides its input.
struct PassContext {
  bool training = false;  // dropout
  Recompute recompute = Recompute::kNothing;
  ops::Float8Recipe fp8 = ops::Float8Recipe::kOff;  // of the products in blocks
  std::optional<ops::Documents> documents = std::nullopt;
  at::Tensor positions = {};  // [batch, seq] int64, in the documents; undefined without these
};

// Computes one part of the model. Holds leaves that the engine may take over; forward reads them.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::string name() const = 0;  // "model.layers.3"
  // In the order in which they should lie in memory (q, k, v adjacent; gate, up adjacent).
  virtual std::vector<NamedParameter> parameters() const = 0;
  // The first layer takes token ids [batch, seq] int64, the others hidden states
  // [batch, seq, hidden]; the head returns logits [batch, seq, vocabulary].
  virtual at::Tensor forward(const at::Tensor& input, const PassContext& context) const = 0;
  // The head alone: Model::loss of hidden states.
  virtual at::Tensor loss(const at::Tensor& input, const at::Tensor& targets,
                          const AnnouncedFactor& announced) const;
};

// Several threads may compute with one model, each without `events` or with its own; set_training
// and changes of parameters need them to pause.
class Model {
 public:
  Model(ModelConfig config, std::vector<std::unique_ptr<Layer>> layers);
  Model(Model&&) = default;
  Model& operator=(Model&&) = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  const std::vector<std::shared_ptr<const Layer>>& layers() const { return layers_; }
  void set_training(bool training) { context_.training = training; }
  bool training() const { return context_.training; }
  // "off", "selective" or "full", as shardwise.activation_checkpointing has it: less memory for the
  // same bits. Acts where gradients are recorded. Throws UsageError for other words.
  void set_activation_checkpointing(const std::string& setting);
  // "off", "tensorwise" or "rowwise", as shardwise.fp8 has it: the products of the blocks run in
  // fp8, which takes parameters in bf16. Returns the names of the matrices whose sizes do not allow
  // it: products with them stay in bf16. Throws UsageError for other words, ConfigError where it
  // would act on no matrix.
  std::vector<std::string> set_fp8(const std::string& setting);

  // Logits [batch, seq, vocabulary] of tokens on the parameters' device, in the parameters' dtype.
  // `events` hears about every layer by its index; null: nobody listens. Throws UsageError for
  // tokens of another dtype or shape, documents that do not fill the rows, and for documents of
  // more than config().longest_sequence tokens.
  at::Tensor logits(const Tokens& tokens, params::UnitEvents* events = nullptr) const;
  // Mean over all targets but -100 of the cross-entropy (fp32 scalar, nats) of predicting targets
  // [batch, seq] int64 at each position; NaN where all of them are -100, as torch has it. Use
  // next_token_targets for language modelling. The head's unit computes it, for some rows at a time
  // and with its gradients, so that the logits of a batch never exist together.
  at::Tensor loss(const Tokens& tokens, const at::Tensor& targets,
                  params::UnitEvents* events = nullptr,
                  const AnnouncedFactor& announced = {}) const;

  // Every parameter once; a tied head appears under the embedding's name only.
  std::vector<NamedParameter> parameters() const;
  std::int64_t parameter_count() const;
  // One unit a layer, for the engine; `dtype` is the dtype to train in. A head that is tied to the
  // embedding has no parameters of its own and lists the embedding's unit in `uses`.
  std::vector<params::UnitSpec> units(at::ScalarType dtype) const;
  // From now on units() lists parameters without values: `make` gives the source of those of
  // parameters()[index].
  using SourceMaker = std::function<std::shared_ptr<params::ValueSource>(std::size_t index)>;
  void give_values_later(SourceMaker make) { sources_ = std::move(make); }

 private:
  using LastStep = std::function<at::Tensor(const Layer& head, const at::Tensor& hidden)>;
  at::Tensor pass(const Tokens& tokens, params::UnitEvents* events, const LastStep& last) const;
  at::Tensor compute(std::size_t layer, const at::Tensor& input, const PassContext& context) const;
  bool is_block(std::size_t layer) const;

  ModelConfig config_;
  std::vector<std::shared_ptr<const Layer>> layers_;  // graphs that recompute them hold them too
  SourceMaker sources_;                               // empty: parameters hold their values
  PassContext context_;
};

// [batch, seq]: the next token of each position, -100 at the last one of a document, as Hugging
// Face's loss has it.
at::Tensor next_token_targets(const Tokens& tokens);

// Random weights as Hugging Face initialises them (normal with initializer_range, GPT-2's scaled
// residual projections, ones and zeros), the same for the same seed; fp32, on the CPU. Throws
// DataError for a model that does not fit into this machine's memory, before allocating.
Model make_model(const ModelConfig& config, std::uint64_t seed);

// The same for an engine that trains on `device` and takes over units(): each parameter gets its
// values when its unit is taken, so that the memory of the host holds one unit at a time. Throws
// DataError as make_model does where `device` is the CPU.
Model make_model_for(at::Device device, const ModelConfig& config, std::uint64_t seed);

// Weights and config.json from a Hugging Face folder, converted to fp32. A tied head may be stored
// under either name or twice; folders of the model without its head (no "model." or "transformer."
// before the names) can be read where the head is tied. Throws DataError that names file and tensor
// for missing, superfluous or misshapen tensors, types that are no plain floating ones, and a tied
// head that differs from the embedding; DataError and IoError as make_model and io do.
Model load_model(const std::string& folder);

// Writes config.json and safetensors in Hugging Face's layout and names; `weights` holds every
// parameter by name (fp32, bf16, fp16 or fp64, on the CPU), for instance gathered by the engine.
// config.json is config.document with the weights' dtype. Makes the folder where it is missing.
// Throws UsageError where a parameter is missing, superfluous or misshapen, IoError.
void save_model(const std::string& folder, const ModelConfig& config,
                const std::vector<NamedParameter>& weights);

}  // namespace shardwise::models
