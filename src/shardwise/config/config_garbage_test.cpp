// Broken documents: whatever comes in, nothing but ConfigError comes out.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "shardwise/base/error.h"
#include "shardwise/config/config.h"

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

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::string mutate(std::string text) {
    const int edits = 1 + pick(4);
    for (int i = 0; i < edits; ++i) {
      edit(text);
    }
    return text;
  }

 private:
  int pick(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }

  std::size_t place(const std::string& text) {
    return static_cast<std::size_t>(pick(static_cast<int>(text.size()) + 1));
  }

  void edit(std::string& text) {
    static const char* const kPieces[] = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "\"",
                                          "null",
                                          "true",
                                          "1e999",
                                          "-1",
                                          "\\u0",
                                          "/*",
                                          "//",
                                          "#",
                                          "NaN",
                                          "\xFF",
                                          "auto",
                                          "0.5",
                                          "\"auto\"",
                                          "1e5",
                                          "[[[[[",
                                          "{\"a\":",
                                          "Infinity",
                                          "\xC3",
                                          "\\",
                                          "-",
                                          "\"stage\": 2,",
                                          "99999999999999999999"};
    const std::size_t at = place(text);
    const std::size_t length = static_cast<std::size_t>(pick(12));
    switch (pick(6)) {
      case 0: text.insert(at, kPieces[pick(static_cast<int>(std::size(kPieces)))]); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, text.substr(place(text), length)); break;
      case 3:
        if (at < text.size()) {
          text[at] = static_cast<char>(pick(256));
        }
        break;
      case 4: text.resize(at); break;
      default: text.insert(at, 1, static_cast<char>(pick(256))); break;
    }
  }

  std::mt19937 random_;
};

TEST(Garbage, TenThousandMutantsGiveConfigErrorsOnly) {
  ASSERT_TRUE(loads(kValid));
  Mutator mutator(20240229);
  int valid = 0;
  for (int i = 0; i < 10'000; ++i) {
    valid += loads(mutator.mutate(kValid)) ? 1 : 0;
  }
  // Some edits fall into comments, spaces and strings; most break the document.
  EXPECT_GT(valid, 100);
  EXPECT_LT(valid, 5'000);
}

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
