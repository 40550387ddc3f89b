// Weights to and from Hugging Face folders.
#include <ATen/ATen.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "shardwise/base/check.h"
#include "shardwise/io/atomic_file.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/models/layer_parts.h"
#include "shardwise/models/model.h"

namespace shardwise::models {
namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr std::int64_t kMaxFileBytes = 5'000'000'000;  // as save_pretrained long had it

struct TypePair {
  io::TensorType file;
  at::ScalarType torch;
};

constexpr TypePair kTypes[] = {{io::TensorType::kF32, at::kFloat},
                               {io::TensorType::kBF16, at::kBFloat16},
                               {io::TensorType::kF16, at::kHalf},
                               {io::TensorType::kF64, at::kDouble}};

at::ScalarType torch_type(const std::string& path, const std::string& name, io::TensorType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.file == type) {
      return pair.torch;
    }
  }
  SW_FAIL(DataError, path, ": ", name, ": has type ", io::tensor_type_name(type),
          "; weights can be F32, BF16, F16 and F64 (quantised ones are not built)");
}

io::TensorType file_type(const NamedParameter& weight) {
  for (const TypePair& pair : kTypes) {
    if (pair.torch == weight.tensor.scalar_type()) {
      return pair.file;
    }
  }
  SW_FAIL(UsageError, weight.name, " is ", weight.tensor.scalar_type(),
          "; weights are saved in fp32, bf16, fp16 or fp64");
}

// Names of files made from the model without its head lack this.
std::string base_prefix(const ModelConfig& config) {
  return config.family() == Family::kGpt2 ? "transformer." : "model.";
}

// Constants that old versions of transformers saved along with the weights.
bool is_known_constant(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

// The tensors of a folder under the names of the model that they are for.
class Weights {
 public:
  Weights(const ModelConfig& config, const std::string& folder)
      : files_(io::Safetensors::open(folder)), prefix_(base_prefix(config)) {
    for (const auto& [name, data] : files_.tensors()) {
      unread_.insert(name);
      has_prefix_ = has_prefix_ || name.starts_with(prefix_);
    }
  }

  bool has(const std::string& name) const { return files_.tensors().contains(file_name(name)); }

  // In the dtype of the file, over its memory.
  at::Tensor take(const std::string& name, at::IntArrayRef sizes) {
    const std::string stored = file_name(name);
    const io::TensorData& data = files_.at(stored);
    SW_USER_CHECK(DataError, at::IntArrayRef(data.sizes) == sizes, files_.path(), ": ", stored,
                  ": has shape ", at::IntArrayRef(data.sizes), "; config.json asks for ", sizes);
    unread_.erase(stored);
    return view(data, torch_type(files_.path(), stored, data.type));
  }

  void check_all_read() const {
    for (const std::string& name : unread_) {
      SW_USER_CHECK(DataError, is_known_constant(name), files_.path(), ": ", name,
                    ": the model of config.json has no such tensor; does the file belong to it?");
    }
  }
  const std::string& path() const { return files_.path(); }

 private:
  std::string file_name(const std::string& name) const {
    return has_prefix_ || !name.starts_with(prefix_) ? name : name.substr(prefix_.size());
  }

  static at::Tensor view(const io::TensorData& data, at::ScalarType type) {
    const auto address = reinterpret_cast<std::uintptr_t>(data.bytes.data());
    if (address % c10::elementSize(type) == 0) {
      // Only read, never written.
      return at::from_blob(const_cast<std::byte*>(data.bytes.data()), data.sizes, type);
    }
    at::Tensor copy = at::empty(data.sizes, type);
    std::memcpy(copy.data_ptr(), data.bytes.data(), data.bytes.size());
    return copy;
  }

  io::Safetensors files_;
  std::string prefix_;
  bool has_prefix_ = false;
  std::set<std::string> unread_;
};

// A tied head may be stored under the embedding's name, under its own, or twice.
void take_tied(Weights& weights, const NamedParameter& embedding) {
  at::Tensor tensor = embedding.tensor;
  if (!weights.has(embedding.name) && weights.has(kHead)) {
    tensor.copy_(weights.take(kHead, tensor.sizes()));
    return;
  }
  tensor.copy_(weights.take(embedding.name, tensor.sizes()));
  if (weights.has(kHead)) {
    const at::Tensor head = weights.take(kHead, tensor.sizes()).to(at::kFloat);
    SW_USER_CHECK(DataError, at::equal(head, tensor), weights.path(), ": ", kHead,
                  ": differs from ", embedding.name,
                  " though config.json's tie_word_embeddings says they are one; set it to false");
  }
}

void check_head_is_there(const ModelConfig& config, const Weights& weights) {
  SW_USER_CHECK(DataError, config.tied || weights.has(kHead), weights.path(), ": ", kHead,
                ": is missing. If the head shares the embedding's weights, set "
                "tie_word_embeddings to true in config.json");
}

// Weights by name, checked against the model of `config`.
std::map<std::string, at::Tensor> checked(const ModelConfig& config,
                                          const std::vector<NamedParameter>& weights) {
  std::map<std::string, at::Tensor> by_name;
  for (const NamedParameter& weight : weights) {
    by_name.emplace(weight.name, weight.tensor);
  }
  const Model shape(config, make_layers(config, at::kMeta));
  const std::vector<NamedParameter> expected = shape.parameters();
  for (const NamedParameter& parameter : expected) {
    const auto found = by_name.find(parameter.name);
    SW_USER_CHECK(UsageError, found != by_name.end(), "nothing to save for ", parameter.name,
                  "; give every parameter of the model");
    SW_USER_CHECK(UsageError, found->second.sizes() == parameter.tensor.sizes(), parameter.name,
                  " has shape ", found->second.sizes(), "; its model has ",
                  parameter.tensor.sizes());
  }
  SW_USER_CHECK(UsageError, by_name.size() == expected.size() && weights.size() == expected.size(),
                weights.size(), " weights were given for a model of ", expected.size(),
                " parameters; give each once");
  return by_name;
}

// config.json for weights of `type`: readers take the dtype from there.
// The class of transformers.
std::string architecture_name(const std::string& model_type) {
  if (model_type == "gpt2") return "GPT2LMHeadModel";
  std::string name = model_type + "ForCausalLM";
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

std::string config_text(const ModelConfig& config, at::ScalarType type) {
  auto document = io::JsonView::parse(config.document, config.source).json();
  const std::string name = type == at::kFloat      ? "float32"
                           : type == at::kBFloat16 ? "bfloat16"
                           : type == at::kHalf     ? "float16"
                                                   : "float64";
  if (document.contains("torch_dtype")) {  // its name before transformers 4.56
    document["torch_dtype"] = name;
  }
  if (document.contains("dtype") || !document.contains("torch_dtype")) {
    document["dtype"] = name;
  }
  if (!document.contains("architectures")) {  // a shape that was written by hand
    document["architectures"] = {architecture_name(config.model_type)};
  }
  return document.dump(2) + "\n";
}

}  // namespace

Model load_model(const std::string& folder) {
  const ModelConfig config = read_model_config(
      io::JsonView::read((std::filesystem::path(folder) / "config.json").string()));
  Weights weights(config, folder);
  check_head_is_there(config, weights);
  check_memory(config);
  Model model(config, make_layers(config, at::kCPU));
  const at::NoGradGuard no_grad;
  bool first = true;
  for (const NamedParameter& parameter : model.parameters()) {
    if (first && config.tied) {
      take_tied(weights, parameter);
    } else {
      at::Tensor(parameter.tensor).copy_(weights.take(parameter.name, parameter.tensor.sizes()));
    }
    first = false;
  }
  weights.check_all_read();
  return model;
}

void save_model(const std::string& folder, const ModelConfig& config,
                const std::vector<NamedParameter>& weights) {
  std::vector<at::Tensor> alive;
  io::TensorTable table;
  at::ScalarType type = at::kFloat;
  for (const auto& [name, tensor] : checked(config, weights)) {
    const at::Tensor& flat = alive.emplace_back(tensor.detach().contiguous());
    type = flat.scalar_type();
    table[name] = {.type = file_type({name, flat}),
                   .sizes = flat.sizes().vec(),
                   .bytes = {static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes()}};
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  SW_USER_CHECK(IoError, !error, "cannot make the folder ", folder, ": ", error.message());
  io::write_model_folder(folder, table, kMaxFileBytes);
  io::AtomicFile file((std::filesystem::path(folder) / "config.json").string());
  file.write(config_text(config, type));
  file.commit();
}

}  // namespace shardwise::models
