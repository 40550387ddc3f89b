// Broken documents: whatever comes in, nothing but ConfigError comes out.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "shardwise/base/error.h"
#include "shardwise/base/memory_file.h"
#include "shardwise/base/mutation.h"
#include "shardwise/config/config.h"
#include "shardwise/config/job.h"
#include "shardwise/config/json_value.h"

namespace shardwise::config {
namespace {

const char* const kValid = R"({
  "train_batch_size": 32, "gradient_accumulation_steps": 4, "steps_per_print": Infinity, // c
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8}},
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16, "hysteresis": 2},
  "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "overlap_comm": true,
    "offload_param": {"device": "none", "nvme_path": null}, "leaf_module": {"classes": ["A"]}},
  "tensor_parallel": {"partition_config": {"layer_specs": [{"patterns": ["x"]}]}},
  "compression_training": {"row_pruning": {"different_groups": {"g": {"modules": ["a"]}}}},
  "shardwise": {"units": ["Block"], "timeout_seconds": 60, "strict": true}
})";

// Counts documents that load; a ConfigError must have a text in UTF-8 that names the source.
bool loads(const std::string& text) {
  try {
    LoadOptions options;
    options.world_size = 2;
    options.source = "mutant";
    const Resolved resolved = load_text(text, options);
    EXPECT_FALSE(resolved.to_json(true).empty());
    EXPECT_FALSE(resolved.value_json("").empty());
    return true;
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("mutant", 0), 0U) << error.what();
    return false;
  }
}

TEST(Garbage, TenThousandMutantsGiveConfigErrorsOnly) {
  ASSERT_TRUE(loads(kValid));
  std::mt19937_64 random(20240229);
  int valid = 0;
  for (int i = 0; i < 10'000; ++i) {
    valid += loads(mutate(kValid, random)) ? 1 : 0;
  }
  // Some edits fall into comments, spaces and strings; most break the document.
  EXPECT_GT(valid, 100);
  EXPECT_LT(valid, 5'000);
}

const char* const kValidJob = R"({
  "model": {"config": {"model_type": "llama", "vocab_size": 256}, "load_weights": false},
  "data": {"files": ["a/*.txt", "b.txt"], "held_out": 0.1, "tokenizer": "bytes",
    "sequence_length": 128, "shuffle": true},
  "training": {"steps": 100, "seed": 7, "evaluate_every": 10, "evaluate_samples": 5,
    "output": "out", "save_weights": false, "sample_prompt": "Once", "sample_temperature": 0.5},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, // c
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5, "total_num_steps": 9}},
  "train_batch_size": 32, "zero_optimization": {"stage": 3}
})";

void expect_sane(const Job& job) {
  EXPECT_NE(job.model.path.empty(), job.model.config_json.empty());
  EXPECT_FALSE(job.data.files.empty());
  EXPECT_TRUE(job.data.held_out >= 0 && job.data.held_out < 1);
  EXPECT_GE(job.data.sequence_length, 2);
  EXPECT_GE(job.training.steps, 1);
  EXPECT_GE(job.training.evaluate_every, 0);
  EXPECT_GE(job.training.sample_tokens, 1);
  EXPECT_FALSE(job.training.output.empty());
  EXPECT_FALSE(job.engine.config().optimizer.type.empty());
}

// Whether this file is a job; what it throws must name the file.
bool loads_job(const std::string& path, const std::vector<Override>& overrides) {
  try {
    expect_sane(load_job(path, overrides, {}));
    return true;
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).rfind(path, 0), 0U) << error.what();
    return false;
  }
}

void expect_sane_mutant_jobs(int count) {
  const MemoryFile file;
  std::mt19937_64 random(20240301);
  int valid = 0;
  for (int i = 0; i < count; ++i) {
    // One in five is a sound document with broken overrides.
    const bool override_only = i % 5 == 0;
    file.set(override_only ? kValidJob : mutate(kValidJob, random));
    std::vector<Override> overrides;
    if (override_only) {
      overrides = {{mutate("training.steps", random), mutate("[12, {\"a\": 5}]", random)},
                   {mutate("zero_optimization.stage", random), mutate("2", random)}};
    }
    valid += loads_job(file.path(), overrides) ? 1 : 0;
  }
  EXPECT_GT(valid, count / 100);
  EXPECT_LT(valid, count / 2);
}

TEST(Garbage, MutantJobs) { expect_sane_mutant_jobs(3'000); }

// `make test-full` runs what is exhaustive.
TEST(Exhaustive, HundredThousandMutantJobs) { expect_sane_mutant_jobs(100'000); }

TEST(Garbage, RandomBytes) {
  std::mt19937 random(7);
  for (int i = 0; i < 2'000; ++i) {
    std::string text(random() % 64, '\0');
    for (char& c : text) {
      c = static_cast<char>(random() % 256);
    }
    EXPECT_FALSE(loads(text));
  }
}

// A NUL would cut what() short, a line break would forge lines of the message.
TEST(Garbage, ControlCharactersAreVisibleInMessages) {
  for (int c = 0; c <= 0x7F; c = c == 0x1F ? 0x7F : c + 1) {
    const char escape[] = {
        '\\', 'u', '0', '0', "01"[c / 16 == 1 || c / 16 == 7], "0123456789abcdef"[c % 16], 0};
    const std::string code = c == 0x7F ? "\\u007f" : escape;
    for (const std::string& document :
         {"{\"train_batch_size\": 8, \"a" + code + "z\": 1}",
          "{\"train_batch_size\": 8, \"fp16\": {\"a" + code + "z\": 1}}",
          "{\"train_batch_size\": \"8" + code + "z\"}",
          "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"a" + code + "z\"}}",
          "{\"train_batch_size\": 8, \"scheduler\": {\"type\": \"a" + code + "z\"}}",
          "{\"a" + code + "z\": {\"b\": 1, \"b\": 2}, \"train_batch_size\": 8}",
          "{\"train_batch_size\": 8, \"a" + code + "z\": 1, \"a" + code + "z\": 1}"}) {
      try {
        load_text(document, {});
        ADD_FAILURE() << document;
      } catch (const ConfigError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find('z'), std::string::npos) << document << ": " << text;
        for (const char at : text) {
          const bool ours = at == '\n' && text.find(" problems:\n") != std::string::npos;
          EXPECT_TRUE((static_cast<unsigned char>(at) >= 0x20 && at != 0x7F) || ours) << text;
        }
      }
    }
  }
  const std::string nul("a\0z", 3);
  EXPECT_STREQ(visible(nul).c_str(), "a\\u0000z");
  try {
    load_file(nul, {});
    ADD_FAILURE();
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("a\\u0000z"), std::string::npos) << error.what();
  }
}

TEST(Garbage, EveryPrefixOfADocument) {
  const std::string text = kValid;
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(loads(text.substr(0, length))) << length;
  }
}

TEST(Garbage, ValuesInPlaceOfValues) {
  const std::string text = kValid;
  for (std::size_t at = text.find(": "); at != std::string::npos; at = text.find(": ", at + 1)) {
    for (const char* value : {"{}", "[]", "null", "\"\"", "-1", "1e308", "true", "[{}]", "NaN"}) {
      const std::size_t end = text.find_first_of(",}\n", at);
      loads(text.substr(0, at + 2) + value + text.substr(end));
    }
  }
}

}  // namespace
}  // namespace shardwise::config
