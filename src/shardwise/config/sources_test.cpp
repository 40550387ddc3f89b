// Files and other places that a document comes from.
#include "shardwise/config/sources.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "shardwise/base/error.h"
#include "shardwise/config/config.h"

namespace shardwise::config {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sw_configXXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Sources, AFileIsNamedInOriginsAndErrors) {
  const TempFolder folder;
  const std::string good = folder.write("ds.json", "\xEF\xBB\xBF{\"train_batch_size\": 8} // end");
  EXPECT_EQ(load_file(good, {}).origin("train_batch_size"), "user (" + good + ")");
  EXPECT_EQ(load_argument(good, {}).config().batch.train_batch_size, 8);
  const std::string bad = folder.write("bad.json", "{\"train_batch_size\": }");
  try {
    load_file(bad, {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_TRUE(contains(error.what(), bad + " (line 1, column 22) is not valid JSON"))
        << error.what();
  }
}

TEST(Sources, LinesOfAFileAreNamed) {
  const TempFolder folder;
  const std::string file = folder.write("ds.json", R"({
  // a comment
  "train_batch_size": 8, "gradient_clipp1ng": 1,
  "zero_optimization": {"stage": 2,
    "overlap_com": true},
  "tensor_parallel": {"partition_config": {"layer_specs": [
    {},
    {"patern": ["x"]}]}},
  "offload_optimizer": {"device": "cpu"},
  "steps_per_print": "often"
})");
  try {
    load_file(file, {});
    FAIL();
  } catch (const ConfigError& error) {
    for (const char* part :
         {"gradient_clipp1ng (line 3): unknown key; did you mean gradient_clipping?",
          "zero_optimization.overlap_com (line 5): unknown key; did you mean overlap_comm?",
          "tensor_parallel.partition_config.layer_specs[1].patern (line 8): unknown key",
          "offload_optimizer (line 9): unknown key; offload_optimizer belongs under "
          "zero_optimization",
          "steps_per_print (line 10): \"often\" is a string"}) {
      EXPECT_TRUE(contains(error.what(), part)) << part << " in " << error.what();
    }
  }
  const std::string lax = folder.write(
      "lax.json", "{\"train_batch_size\": 8,\n\"shardwise\": {\"strict\": false},\n\"x\": 1}");
  ASSERT_EQ(load_file(lax, {}).notes().size(), 1U);
  EXPECT_EQ(load_file(lax, {}).notes()[0].rfind("x (line 3): unknown key", 0), 0U);
}

TEST(Sources, FilesThatCannotBeReadAreNamed) {
  const TempFolder folder;
  for (const std::string& path : {folder.path() + "/missing.json", folder.path(), std::string()}) {
    try {
      load_file(path, {});
      FAIL() << path;
    } catch (const IoError& error) {
      EXPECT_TRUE(contains(error.what(), "\"" + path + "\"")) << error.what();
    }
  }
  const std::string large = folder.write("large.json", std::string(5 << 20, ' '));
  EXPECT_THROW(load_file(large, {}), ConfigError);
  EXPECT_THROW(load_file("/dev/zero", {}), ConfigError);
}

TEST(Sources, Base64) {
  // python3 -c "import base64; print(base64.urlsafe_b64encode(b'...'))"
  const Resolved resolved = load_argument("eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0=", {});
  EXPECT_EQ(resolved.config().batch.train_batch_size, 8);
  EXPECT_EQ(resolved.origin("train_batch_size"), "user (base64)");
  // {"train_batch_size":8,"wandb":{"group": (two of ?, >, ~)}} has both special characters.
  EXPECT_EQ(load_argument("eyJ0cmFpbl9iYXRjaF9zaXplIjo4LCJ3YW5kYiI6eyJncm91cCI6Ij8_Pj5-fiJ9fQ", {})
                .value_json("wandb.group"),
            "\"?\?>>~~\"");
}

TEST(Sources, OtherArgumentsAreExplained) {
  for (const std::string& argument : {std::string("no/such/ds.json"), std::string("ds_config"),
                                      std::string(), std::string("WzFd"), std::string(100'000, 'a'),
                                      std::string("a\0b", 3), std::string("\xFF\xFE")}) {
    try {
      load_argument(argument, {});
      FAIL() << argument;
    } catch (const ConfigError& error) {
      EXPECT_TRUE(contains(error.what(), "neither an existing file nor")) << error.what();
    }
  }
  EXPECT_THROW(load_argument("{\"train_batch_size\": 8}", {}), ConfigError);
}

}  // namespace
}  // namespace shardwise::config
