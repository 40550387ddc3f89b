#include "shardwise/config/job.h"

#include <filesystem>

#include "shardwise/base/check.h"
#include "shardwise/config/draft.h"
#include "shardwise/config/json_reader.h"
#include "shardwise/config/overrides.h"
#include "shardwise/config/sources.h"

namespace shardwise::config {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBytes = "bytes";

bool is_set(const Draft& draft, std::string_view path) {
  return draft.given(path) && !draft.value(path).is_null();
}

void require(Draft& draft, std::string_view path, const char* example) {
  if (draft.sound({path}) && draft.value(path).is_null()) {
    draft.problem(concat(path, " is missing; a job needs it, for example ", example));
  }
}

void check_model(Draft& draft) {
  if (!draft.sound({"model.path", "model.config", "model.load_weights"})) {
    return;
  }
  const bool path = is_set(draft, "model.path");
  const bool config = is_set(draft, "model.config");
  if (path && config) {
    draft.problem("model.path and model.config are both given; keep one of them");
  } else if (!path && !config) {
    draft.problem(
        "model.path or model.config is missing; a job needs one of them: the folder of a Hugging "
        "Face model, or an object such as {\"model_type\": \"llama\", \"hidden_size\": 64, ...}");
  } else if (config && is_set(draft, "model.load_weights") && draft.is_true("model.load_weights")) {
    draft.problem(
        "model.load_weights: true needs model.path; with model.config the weights start random");
  } else if (config) {
    draft.derive("model.load_weights", Value::of(false), "derived from model.config");
  }
}

void check_held_out(Draft& draft) {
  if (!draft.sound({"data.held_out", "data.held_out_files"})) {
    return;
  }
  const bool share = draft.value("data.held_out").as_double() > 0;
  const bool files = !draft.value("data.held_out_files").items.empty();
  if (share && files) {
    draft.problem("data.held_out and data.held_out_files are both given; keep one of them");
  }
  for (const char* key : {"training.evaluate_every", "training.evaluate_samples"}) {
    if (!share && !files && draft.sound({key}) && draft.value(key).integer > 0) {
      draft.note(concat(key, " has no effect: there is no data.held_out or data.held_out_files"));
    }
  }
}

void check_sample(Draft& draft) {
  for (const char* key : {"training.sample_tokens", "training.sample_temperature"}) {
    if (draft.given(key) && draft.value("training.sample_prompt").text.empty()) {
      draft.note(concat(key, " has no effect: there is no training.sample_prompt"));
    }
  }
}

void check_one_path(Draft& draft, std::string_view key, const std::string& path) {
  if (path.empty()) {
    draft.problem(concat(key, ": \"\" is not a path"));
  } else if (path.find('\0') != std::string::npos) {
    draft.problem(concat(key, ": ", shorten(Value::of(path)), " has a NUL character in it"));
  }
}

void check_paths(Draft& draft) {
  for (const char* key : {"model.path", "data.tokenizer", "training.output"}) {
    if (draft.sound({key}) && !draft.value(key).is_null()) {
      check_one_path(draft, key, draft.value(key).text);
    }
  }
  for (const char* key : {"data.files", "data.held_out_files"}) {
    if (draft.sound({key})) {
      for (const Value& file : draft.value(key).items) {
        check_one_path(draft, key, file.text);
      }
    }
  }
  if (draft.sound({"data.files"}) && is_set(draft, "data.files") &&
      draft.value("data.files").items.empty()) {
    draft.problem("data.files: [] names no file; a job needs one, for example \"corpus/*.txt\"");
  }
}

// Paths are taken from the folder of the job file.
class Anchor {
 public:
  explicit Anchor(const std::string& job_file) : folder_(fs::path(job_file).parent_path()) {}

  void move(std::string& path) const {
    if (!path.empty()) {
      path = (folder_ / path).lexically_normal().string();
    }
  }

  void move_all(JobSections& job) const {
    move(job.model.path);
    for (auto* files : {&job.data.files, &job.data.held_out_files}) {
      for (std::string& file : *files) {
        move(file);
      }
    }
    if (job.data.tokenizer != kBytes) {
      move(job.data.tokenizer);
    }
    move(job.training.output);
  }

 private:
  fs::path folder_;
};

}  // namespace

void check_job(Draft& draft) {
  check_model(draft);
  require(draft, "data.files", "\"corpus/*.txt\"");
  require(draft, "data.sequence_length", "512");
  require(draft, "training.steps", "1000");
  if (draft.sound({"optimizer.type"}) && draft.value("optimizer.type").is_null()) {
    draft.problem(
        "optimizer.type is missing; a job needs an optimizer, for example \"optimizer\": "
        "{\"type\": \"AdamW\", \"params\": {\"lr\": 3e-4}}");
  }
  check_paths(draft);
  check_held_out(draft);
  check_sample(draft);
  for (std::string& problem : python_problems(draft.entries)) {
    draft.problem(std::move(problem));
  }
}

Job load_job(const std::string& path, const std::vector<Override>& overrides,
             const LoadOptions& options) {
  Draft draft;
  draft.options = options;
  draft.options.source = path;
  draft.job = true;
  Value document = parse_json(read_document_file(path), path, &draft.problems, &draft.lines);
  if (document.is_object()) {  // what else it is, is reported when it is read
    apply_overrides(overrides, document, draft);
  }
  const auto state = std::make_shared<Resolved::State>(*resolve(document, std::move(draft)));
  JobSections sections = make_job_sections(state->entries);
  const Anchor folder(path);
  folder.move_all(sections);
  folder.move(state->config.own.trace.path);
  return {std::move(sections), path, Resolved(state)};
}

bool is_job_file(const std::string& path) {
  try {
    std::vector<std::string> ignored;
    const Value document = parse_json(read_document_file(path), path, &ignored);
    for (const Field& field : schema().fields()) {
      if (field.of_job && field.is_section() && document.is_object() &&
          document.find(field.path) != nullptr) {
        return true;
      }
    }
  } catch (const Error&) {
    return false;
  }
  return false;
}

}  // namespace shardwise::config
