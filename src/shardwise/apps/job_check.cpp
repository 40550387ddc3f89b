#include "shardwise/apps/job_check.h"

#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <optional>

#include "shardwise/base/check.h"
#include "shardwise/config/env.h"
#include "shardwise/data/token_loader.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/models/job_model.h"

namespace shardwise::apps {
namespace {

// The folder, or the nearest one above it that exists, must take files.
void check_output(const std::string& output) {
  namespace fs = std::filesystem;
  std::error_code none;
  fs::path folder = fs::absolute(output, none);
  while (!fs::exists(folder, none) && folder.has_parent_path() && folder != folder.parent_path()) {
    folder = folder.parent_path();
  }
  SW_USER_CHECK(IoError,
                fs::is_directory(folder, none) && ::access(folder.c_str(), W_OK | X_OK) == 0,
                "training.output: ", output, " cannot be made, since ", folder.string(),
                " is no folder that may be written; name another one");
}

}  // namespace

std::vector<config::Override> parse_overrides(const std::string& command,
                                              const std::vector<std::string>& assignments) {
  std::vector<config::Override> overrides;
  for (const std::string& assignment : assignments) {
    const std::size_t sign = assignment.find('=');
    SW_USER_CHECK(UsageError, sign != std::string::npos && sign > 0, command, ": --set ",
                  assignment, ": write path=value, for example optimizer.params.lr=3e-4");
    overrides.push_back({assignment.substr(0, sign), assignment.substr(sign + 1)});
  }
  return overrides;
}

config::LoadOptions load_options(const Context& context, const std::string& ranks,
                                 const std::string& option) {
  const config::EnvironmentLookup lookup =
      [&](std::string_view name) -> std::optional<std::string> {
    const auto found = context.environment.find(std::string(name));
    if (found == context.environment.end()) return std::nullopt;
    return found->second;
  };
  config::LoadOptions options;
  options.environment_timeout_seconds = config::read_settings(lookup).timeout_seconds;
  const bool from_environment = ranks.empty();
  const std::string text = from_environment ? lookup("WORLD_SIZE").value_or("1") : ranks;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), options.world_size);
  SW_USER_CHECK(UsageError,
                error == std::errc() && end == text.data() + text.size() && options.world_size >= 1,
                from_environment ? "WORLD_SIZE" : option, " takes a whole number from 1, not '",
                text, "'");
  options.world_size_origin = !from_environment                  ? option
                              : lookup("WORLD_SIZE").has_value() ? "WORLD_SIZE"
                                                                 : "default";
  return options;
}

JobCheck check_job(const config::Job& job) {
  JobCheck result;
  check_output(job.training.output);
  try {
    const models::ModelConfig model = models::read_job_model(job);
    const auto tokenizer = data::make_tokenizer(job.data.tokenizer, "data.tokenizer");
    const std::string warning = models::check_fits(model, job.data, tokenizer->vocabulary_size());
    if (!warning.empty()) result.warnings.push_back(warning);
    data::encode_prompt(*tokenizer, job.training.sample_prompt);
    const auto corpus = data::open_tokenized_corpus(data::corpus_options(job.data), *tokenizer);
    if (corpus) {
      data::make_loader(*corpus, job.data.held_out,
                        {.micro_batch = job.engine.config().batch.train_micro_batch_size_per_gpu,
                         .world_size = static_cast<int>(job.engine.world_size())});
    } else {
      result.not_looked_at = "how many samples the text gives";
    }
    if (job.model.load_weights) {
      io::Safetensors::open(job.model.path);
      result.not_looked_at +=
          concat(result.not_looked_at.empty() ? "" : ", ", "whether the weights fit config.json");
    }
  } catch (const ConfigError& error) {
    SW_FAIL(ConfigError, job.path, ": ", error.what());
  }
  return result;
}

}  // namespace shardwise::apps
