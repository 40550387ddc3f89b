#include <gtest/gtest.h>

#include <string>

#include "shardwise/base/error.h"
#include "shardwise/config/config.h"

namespace shardwise::config {
namespace {

std::string fused_layers(const std::string& value) {
  const std::string text =
      R"({"train_batch_size": 8, "shardwise": {"fused_layers": )" + value + "}}";
  return load_text(text, {}).config().own.fused_layers;
}

TEST(FieldsTraining, FusedLayersIsASwitchOrAuto) {
  EXPECT_EQ(fused_layers("true"), "on");
  EXPECT_EQ(fused_layers("false"), "off");
  EXPECT_EQ(fused_layers("\"on\""), "on");
  EXPECT_EQ(fused_layers("\"off\""), "off");
  EXPECT_EQ(fused_layers("\"auto\""), "auto");
  EXPECT_EQ(load_text(R"({"train_batch_size": 8})", {}).config().own.fused_layers, "auto");
}

TEST(FieldsTraining, OtherValuesOfFusedLayersAreRefused) {
  for (const char* value : {"1", "\"yes\"", "[]"}) {
    try {
      fused_layers(value);
      FAIL() << value;
    } catch (const ConfigError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("\"auto\", true or false"), std::string::npos) << what;
    }
  }
}

TEST(FieldsTraining, Fp8IsOffOrAKindOfScaling) {
  const auto fp8 = [](const std::string& value) {
    return load_text(R"({"train_batch_size": 8, "bf16": {"enabled": true},
                         "shardwise": {"fp8": ")" +
                         value + "\"}}",
                     {})
        .config()
        .own.fp8;
  };
  for (const char* value : {"off", "tensorwise", "rowwise"}) {
    EXPECT_EQ(fp8(value), value);
  }
  EXPECT_EQ(load_text(R"({"train_batch_size": 8})", {}).config().own.fp8, "off");
}

}  // namespace
}  // namespace shardwise::config
