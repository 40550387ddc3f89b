#include "shardwise/config/job.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "shardwise/base/error.h"

namespace shardwise::config {
namespace {

namespace fs = std::filesystem;

const char* const kJob = R"({
  "model": {"path": "tiny"}, // a comment
  "data": {"files": "corpus/*.txt", "sequence_length": 128},
  "training": {"steps": 100},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
  "train_micro_batch_size_per_gpu": 4
})";

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class JobTest : public testing::Test {
 protected:
  JobTest() : folder_(fs::temp_directory_path() / ("sw_job_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_ / "jobs");
  }
  ~JobTest() override { fs::remove_all(folder_); }

  std::string path() const { return (folder_ / "jobs" / "job.json").string(); }

  Job load(const std::string& text, const std::vector<Override>& overrides = {}) {
    std::ofstream(path(), std::ios::binary) << text;
    LoadOptions options;
    options.world_size = 2;
    return load_job(path(), overrides, options);
  }

  // "" when the job is right, else the error.
  std::string error_of(const std::string& text, const std::vector<Override>& overrides = {}) {
    try {
      load(text, overrides);
      return "";
    } catch (const ConfigError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path())) << error.what();
      return error.what();
    }
  }

  // The job above with these members of one section replaced.
  std::string error_with(const std::string& section, const std::string& value) {
    return error_of(kJob, {{section, value}});
  }

  std::string in_folder(const std::string& name) const {
    return (folder_ / "jobs" / name).string();
  }

  fs::path folder_;
};

TEST_F(JobTest, DefaultsAreTheStructsInitialisers) {
  const Job job = load(kJob);
  const JobTraining training;
  EXPECT_EQ(job.model.path, in_folder("tiny"));
  EXPECT_EQ(job.model.config_json, "");
  EXPECT_TRUE(job.model.load_weights);
  EXPECT_EQ(job.data.files, std::vector<std::string>{in_folder("corpus/*.txt")});
  EXPECT_TRUE(job.data.held_out_files.empty());
  EXPECT_EQ(job.data.tokenizer, "bytes");
  EXPECT_EQ(job.data.sequence_length, 128);
  EXPECT_TRUE(job.data.shuffle);
  EXPECT_EQ(job.training.steps, 100);
  EXPECT_EQ(job.training.output, in_folder(training.output));
  EXPECT_EQ(job.training.sample_tokens, training.sample_tokens);
  EXPECT_EQ(job.training.sample_temperature, training.sample_temperature);
  EXPECT_EQ(job.engine.config().batch.train_batch_size, 8);
  EXPECT_EQ(job.engine.config().optimizer.params.lr, 3e-4);
  EXPECT_TRUE(job.engine.notes().empty());
}

TEST_F(JobTest, EveryKeyReachesItsMember) {
  const Job job = load(R"({
    "model": {"config": {"model_type": "llama", "rope": {"x": [1, 2.5, null]}}},
    "data": {"files": ["a.txt", "/b/c.txt"], "held_out_files": "../h.txt",
      "tokenizer": "tok/tokenizer.json", "sequence_length": 2, "shuffle": false},
    "training": {"steps": 1, "seed": 9223372036854775807, "evaluate_every": 3,
      "evaluate_samples": 4, "output": "/out", "save_weights": false, "sample_prompt": "Once",
      "sample_tokens": 5, "sample_temperature": 0},
    "optimizer": {"type": "SGD"}, "train_batch_size": 2, "zero_optimization": {"stage": 3}})");
  EXPECT_EQ(job.model.path, "");
  EXPECT_EQ(job.model.config_json, R"({"model_type": "llama", "rope": {"x": [1, 2.5, null]}})");
  EXPECT_FALSE(job.model.load_weights);
  EXPECT_EQ(job.data.files, (std::vector<std::string>{in_folder("a.txt"), "/b/c.txt"}));
  EXPECT_EQ(job.data.held_out_files, std::vector<std::string>{(folder_ / "h.txt").string()});
  EXPECT_EQ(job.data.tokenizer, in_folder("tok/tokenizer.json"));
  EXPECT_EQ(job.data.sequence_length, 2);
  EXPECT_FALSE(job.data.shuffle);
  EXPECT_EQ(job.training.seed, 9223372036854775807U);
  EXPECT_EQ(job.training.evaluate_every, 3);
  EXPECT_EQ(job.training.evaluate_samples, 4);
  EXPECT_EQ(job.training.output, "/out");
  EXPECT_FALSE(job.training.save_weights);
  EXPECT_EQ(job.training.sample_prompt, "Once");
  EXPECT_EQ(job.training.sample_tokens, 5);
  EXPECT_EQ(job.training.sample_temperature, 0);
  EXPECT_EQ(job.engine.config().zero.stage, 3);
}

TEST_F(JobTest, TheEngineKnowsTheSectionsAndPrintsThem) {
  const Job job = load(kJob, {{"training.seed", "7"}});
  EXPECT_EQ(job.engine.value_json("training.steps"), "100");
  EXPECT_EQ(job.engine.origin("training.steps"), "user (" + path() + ")");
  EXPECT_EQ(job.engine.origin("training.seed"), "command line");
  EXPECT_EQ(job.engine.origin("data.shuffle"), "default");
  EXPECT_TRUE(contains(job.engine.to_json(true), "\"training.seed\""));
  // What it prints is the same job again.
  const Job again = load(job.engine.to_json(false));
  EXPECT_EQ(again.engine.to_json(false), job.engine.to_json(false));
  EXPECT_EQ(again.data.files, job.data.files);
  EXPECT_EQ(again.training.seed, 7U);
}

TEST_F(JobTest, AJobOfAConfigPrintsAsAJobOfAConfig) {
  const Job job = load(kJob, {{"model", R"({"config": {"vocab_size": 9}})"}});
  EXPECT_EQ(job.engine.origin("model.config"), "command line");
  EXPECT_EQ(load(job.engine.to_json(false)).model.config_json, R"({"vocab_size": 9})");
}

TEST_F(JobTest, AllThatIsMissingIsSaidAtOnce) {
  const std::string error = error_of(R"({"train_batch_size": 2})");
  for (const char* key : {"model.path or model.config is missing", "data.files is missing",
                          "data.sequence_length is missing", "training.steps is missing",
                          "optimizer.type is missing"}) {
    EXPECT_TRUE(contains(error, key)) << key << " in " << error;
  }
  EXPECT_TRUE(contains(error, "5 problems:")) << error;
}

TEST_F(JobTest, ContradictionsNameBothSides) {
  EXPECT_TRUE(contains(error_with("model.config", "{}"), "model.path and model.config are both"));
  EXPECT_TRUE(contains(error_with("model", R"({"config": {}, "load_weights": true})"),
                       "model.load_weights: true needs model.path"));
  EXPECT_TRUE(error_of(kJob, {{"training.steps", "abc"}}).ends_with("allowed: an integer >= 1"));
  EXPECT_TRUE(contains(error_of(kJob, {{"training.steps", "null"}}), "training.steps is missing"));
  EXPECT_TRUE(contains(error_of(kJob, {{"optimizer.type", "RMSprop"}}),
                       "optimizer.type: \"RMSprop\" is carried out by torch's own class"));
  EXPECT_TRUE(contains(error_with("data", R"({"files": "a", "sequence_length": 2, "held_out": 0.1,
                             "held_out_files": ["b"]})"),
                       "data.held_out and data.held_out_files are both given"));
}

TEST_F(JobTest, WrongValuesSayWhatIsAllowed) {
  const std::pair<const char*, const char*> wrong[] = {{"model.path", "5"},
                                                       {"model.path", "\"\""},
                                                       {"model.config", "[]"},
                                                       {"model.load_weights", "1"},
                                                       {"data.files", "{}"},
                                                       {"data.files", "[]"},
                                                       {"data.files", "[1]"},
                                                       {"data.files", "[\"a\", \"\"]"},
                                                       {"data.files", "[\"a\\u0000b\"]"},
                                                       {"data.held_out", "1"},
                                                       {"data.held_out", "-0.1"},
                                                       {"data.held_out", "NaN"},
                                                       {"data.held_out_files", "[\"\"]"},
                                                       {"data.tokenizer", "\"\""},
                                                       {"data.sequence_length", "1"},
                                                       {"data.sequence_length", "2.5"},
                                                       {"data.sequence_length", "1e30"},
                                                       {"data.shuffle", "\"yes\""},
                                                       {"training.steps", "0"},
                                                       {"training.steps", "\"auto\""},
                                                       {"training.seed", "-1"},
                                                       {"training.evaluate_every", "-1"},
                                                       {"training.evaluate_samples", "0.5"},
                                                       {"training.output", "\"\""},
                                                       {"training.save_weights", "null"},
                                                       {"training.sample_prompt", "3"},
                                                       {"training.sample_tokens", "0"},
                                                       {"training.sample_temperature", "-1"},
                                                       {"training.sample_temperature", "Infinity"}};
  for (const auto& [key, value] : wrong) {
    const std::string error = error_with(key, value);
    EXPECT_TRUE(contains(error, key)) << key << " = " << value << ": " << error;
  }
}

TEST_F(JobTest, UnknownKeysGetTheNearestName) {
  EXPECT_TRUE(contains(error_with("training.stepps", "5"),
                       "training.stepps: unknown key; did you mean steps?"));
  const std::string error = error_with("steps", "5");
  EXPECT_TRUE(contains(error, "steps belongs under ")) << error;
  EXPECT_TRUE(contains(error, "under training")) << error;
  EXPECT_TRUE(contains(error_with("zero_optimization.stge", "1"), "did you mean stage?"));
}

TEST_F(JobTest, SettingsThatDoNothingAreNoted) {
  const Job job = load(kJob, {{"training.evaluate_every", "5"}, {"training.sample_tokens", "5"}});
  ASSERT_EQ(job.engine.notes().size(), 2U);
  EXPECT_TRUE(contains(job.engine.notes()[0], "training.evaluate_every has no effect"));
  EXPECT_TRUE(contains(job.engine.notes()[1], "training.sample_tokens has no effect"));
}

// --- overrides ---

TEST_F(JobTest, OverridesAreJsonOrElseText) {
  const Job job = load(kJob, {{"training.steps", "5"},
                              {"training.output", "runs/1"},
                              {"training.sample_prompt", "\"5\""},
                              {"data.files", R"(["x.txt", "y.txt"])"},
                              {"zero_optimization.stage", "2"},
                              {"shardwise.units", "Block"},
                              {"optimizer.params.betas", "[0.5, 0.75]"}});
  EXPECT_EQ(job.training.steps, 5);
  EXPECT_EQ(job.training.output, in_folder("runs/1"));
  EXPECT_EQ(job.training.sample_prompt, "5");
  EXPECT_EQ(job.data.files.size(), 2U);
  EXPECT_EQ(job.engine.config().zero.stage, 2);
  EXPECT_EQ(job.engine.config().own.units, std::vector<std::string>{"Block"});
  EXPECT_EQ(job.engine.config().optimizer.params.lr, 3e-4);
  EXPECT_EQ(job.engine.config().optimizer.params.betas[1], 0.75);
  EXPECT_EQ(job.engine.origin("zero_optimization.stage"), "command line");
  EXPECT_EQ(job.engine.origin("optimizer.params.betas"), "command line");
  EXPECT_EQ(job.engine.origin("optimizer.params.lr"), "user (" + path() + ")");
}

TEST_F(JobTest, TheLastOverrideWins) {
  EXPECT_EQ(load(kJob, {{"training.steps", "5"}, {"training.steps", "6"}}).training.steps, 6);
  const Job job = load(kJob, {{"training", R"({"steps": 5})"}, {"training.seed", "3"}});
  EXPECT_EQ(job.training.steps, 5);
  EXPECT_EQ(job.training.seed, 3U);
}

TEST_F(JobTest, AnOverrideReplacesAKeyUnderItsOtherName) {
  const std::string text = std::string(kJob).insert(
      1, R"("zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 5}, )");
  const Job job = load(text, {{"zero_optimization.prefetch_bucket_size", "6"}});
  EXPECT_EQ(job.engine.config().zero.prefetch_bucket_size, 6);
  EXPECT_EQ(job.engine.origin("zero_optimization.stage3_prefetch_bucket_size"), "command line");
}

TEST_F(JobTest, LinesAreThoseOfTheFileNotOfOverrides) {
  const std::string text = R"({"model": {"path": "m"},
  "data": {"files": "x", "sequence_length": 8},
  "training": {"steps": -1}, "optimizer": {"type": "AdamW"}, "train_batch_size": 4})";
  EXPECT_TRUE(contains(error_of(text), "training.steps (line 3): -1 is too small"))
      << error_of(text);
  const std::string overridden = error_of(text, {{"training.steps", "-2"}});
  EXPECT_TRUE(contains(overridden, "training.steps: -2 is too small")) << overridden;
}

TEST_F(JobTest, OverridesThatCannotBePutAnywhere) {
  EXPECT_TRUE(contains(error_with("data.files.first", "5"),
                       "data.files is a string (\"corpus/*.txt\"), not an object; set data.files"));
  EXPECT_TRUE(contains(error_with("training..steps", "5"), "the path has an empty part"));
  EXPECT_TRUE(contains(error_with("", "5"), "the path has an empty part"));
  EXPECT_TRUE(contains(error_with("training.output", "\xFF"), "is not UTF-8"));
  EXPECT_TRUE(contains(error_with("training.\xC3", "5"), "is not UTF-8"));
  std::string deep = "model.config";
  for (int i = 0; i < 100'000; ++i) {
    deep += ".a";
  }
  EXPECT_TRUE(contains(error_with(deep, "1"), "no key has"));
  EXPECT_TRUE(contains(error_with("training", R"({"steps": 1, "steps": 2})"), "given twice"));
}

// --- which documents are jobs ---

TEST_F(JobTest, JobSectionsInAnEngineConfigurationBelongElsewhere) {
  for (const char* section : {"model", "data", "training"}) {
    try {
      load_text(std::string("{\"train_batch_size\": 8, \"") + section + "\": {\"x\": 1}}", {});
      ADD_FAILURE() << section;
    } catch (const ConfigError& error) {
      EXPECT_TRUE(contains(error.what(), std::string(section) + ": this section belongs to job"))
          << error.what();
      EXPECT_FALSE(contains(error.what(), "problems:")) << error.what();
    }
  }
}

TEST_F(JobTest, AnEngineConfigurationHasNoJobKeys) {
  const Resolved resolved = load_text(R"({"train_batch_size": 8})", {});
  EXPECT_FALSE(contains(resolved.to_json(false), "training"));
  EXPECT_FALSE(contains(resolved.value_json(""), "\"training\""));
  EXPECT_THROW(resolved.value_json("training.steps"), ConfigError);
  EXPECT_THROW(resolved.origin("data"), ConfigError);
  try {
    load_text(R"({"train_batch_size": 8, "sequence_length": 5})", {});
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_FALSE(contains(error.what(), "belongs under data")) << error.what();
  }
}

TEST_F(JobTest, JobFilesAreToldByTheirSections) {
  const std::pair<const char*, bool> cases[] = {{kJob, true},
                                                {R"({"training": 5})", true},
                                                {R"({"train_batch_size": 5})", false},
                                                {"[1]", false},
                                                {"{", false}};
  for (const auto& [text, expected] : cases) {
    std::ofstream(path(), std::ios::binary) << text;
    EXPECT_EQ(is_job_file(path()), expected) << text;
  }
  EXPECT_FALSE(is_job_file(in_folder("missing.json")));
}

TEST_F(JobTest, AFileThatIsNotThere) {
  EXPECT_THROW(load_job(in_folder("missing.json"), {}, {}), IoError);
  EXPECT_THROW(load_job(folder_.string(), {}, {}), IoError);
}

TEST_F(JobTest, PathsOfAJobInTheWorkingDirectoryStayRelative) {
  const fs::path before = fs::current_path();
  load(kJob);
  fs::current_path(folder_ / "jobs");
  const Job job = load_job("job.json", {}, {});
  fs::current_path(before);
  EXPECT_EQ(job.model.path, "tiny");
  EXPECT_EQ(job.training.output, "output");
}

}  // namespace
}  // namespace shardwise::config
