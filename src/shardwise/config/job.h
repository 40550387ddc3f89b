// The job file of `shardwise train`: the engine's configuration plus the sections "model", "data"
// and "training" in one document.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/config/config.h"

namespace shardwise::config {

struct JobModel {
  std::string path;          // Hugging Face folder; "": `config_json` describes the model
  std::string config_json;   // the object "model.config", in the keys of Hugging Face's config.json
  bool load_weights = true;  // of `path`; false: random ones in its shape. Always false without it
};

struct JobData {
  std::vector<std::string> files;           // text and token files, globs allowed
  std::vector<std::string> held_out_files;  // instead of held_out
  double held_out = 0;                      // share of the corpus's end, in [0, 1)
  std::string tokenizer = "bytes";          // or a tokenizer.json, or a folder with one
  std::int64_t sequence_length = 0;
  bool separate_documents = false;  // a token sees its own document alone
  bool shuffle = true;
};

struct JobTraining {
  std::int64_t steps = 0;             // optimizer steps
  std::uint64_t seed = 0;             // of weights, shuffling, dropout and sampling
  std::int64_t evaluate_every = 0;    // steps; 0: at the end only (where there is held-out data)
  std::int64_t evaluate_samples = 0;  // at most; 0: all of them
  std::string output = "output";      // folder for log, report and weights
  bool save_weights = true;           // at the end, in Hugging Face's layout, to <output>/model
  std::string sample_prompt;          // continued at the end of the run when not ""
  std::int64_t sample_tokens = 200;
  double sample_temperature = 0.7;  // 0: the likeliest token
};

// What the document says beyond the engine's keys.
struct JobSections {
  JobModel model;
  JobData data;
  JobTraining training;
};

struct Job : JobSections {
  std::string path;  // of the file
  Resolved engine;   // value_json, origin and to_json know the three sections as well
};

// One "--set path=value": value is JSON, or a string where it is no JSON.
struct Override {
  std::string path;  // "training.steps"; sections that are not there are made
  std::string value;
};

// Relative paths in the job (model.path, data.files, data.held_out_files, data.tokenizer,
// training.output) are taken from the job file's folder. Throws ConfigError with all problems of
// the document (as load_file does), IoError. Values of overrides have the origin "command line".
Job load_job(const std::string& path, const std::vector<Override>& overrides,
             const LoadOptions& options);

// Whether the document in this file has one of the three sections. False for what cannot be read:
// loading it says why.
bool is_job_file(const std::string& path);

}  // namespace shardwise::config
