// The model of a job file, as far as that goes without torch: `shardwise config check` asks too.
#pragma once

#include <cstdint>
#include <string>

#include "shardwise/config/job.h"
#include "shardwise/models/model_config.h"

namespace shardwise::models {

// The shape that model.path or model.config gives; unknown keys of the latter are errors. Throws
// ConfigError for a model.path that is no model's folder, else as read_model_config does.
ModelConfig read_job_model(const config::Job& job);

// Throws ConfigError where the model cannot be trained on data.sequence_length tokens of a
// vocabulary of this size. Returns what a user should know, or "".
std::string check_fits(const ModelConfig& model, const config::JobData& data,
                       std::int64_t vocabulary);

}  // namespace shardwise::models
