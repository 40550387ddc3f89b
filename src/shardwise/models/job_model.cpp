#include "shardwise/models/job_model.h"

#include <filesystem>

#include "shardwise/base/check.h"

namespace shardwise::models {
namespace {

namespace fs = std::filesystem;

io::JsonView read_folder(const std::string& folder) {
  const fs::path file = fs::path(folder) / "config.json";
  std::error_code error;
  SW_USER_CHECK(ConfigError, fs::exists(file, error), "model.path: '", folder, "' ",
                fs::is_regular_file(folder, error) ? "is a file"
                : fs::exists(folder, error)        ? "has no config.json"
                                                   : "does not exist",
                "; name a folder in Hugging Face's layout (config.json and safetensors) on this "
                "machine, as nothing is downloaded, or give model.config instead");
  return io::JsonView::read(file.string());
}

}  // namespace

ModelConfig read_job_model(const config::Job& job) {
  if (!job.model.path.empty()) {
    return read_model_config(read_folder(job.model.path));
  }
  const auto document = io::JsonView::parse(job.model.config_json, job.path + ": model.config");
  refuse_unknown_keys(document);
  return read_model_config(document);
}

std::string check_fits(const ModelConfig& model, const config::JobData& data,
                       std::int64_t vocabulary) {
  SW_USER_CHECK(ConfigError, vocabulary <= model.vocabulary, "data.tokenizer: ", data.tokenizer,
                " has ", vocabulary, " tokens but the model's vocab_size is ", model.vocabulary,
                "; use the model's tokenizer, or a vocab_size of at least ", vocabulary);
  SW_USER_CHECK(
      ConfigError, model.longest_sequence == 0 || data.sequence_length <= model.longest_sequence,
      "data.sequence_length: ", data.sequence_length, " is more than the model's ",
      model.longest_sequence, " positions; make it at most that, with separate documents too");
  // Rotary embeddings have no last position, so it trains, as in transformers.
  if (data.sequence_length > model.max_positions) {
    return concat("data.sequence_length ", data.sequence_length,
                  " is more than the model's max_position_embeddings ", model.max_positions,
                  ": weights that were trained on shorter texts are weak beyond it, and programs "
                  "that load the result go by it");
  }
  return "";
}

}  // namespace shardwise::models
