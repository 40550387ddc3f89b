#include "shardwise/config/base64.h"

#include <gtest/gtest.h>

namespace shardwise::config {
namespace {

// The examples of RFC 4648, section 10.
TEST(Base64, DecodesTheExamplesOfTheStandard) {
  EXPECT_EQ(decode_base64(""), "");
  EXPECT_EQ(decode_base64("Zg=="), "f");
  EXPECT_EQ(decode_base64("Zm8="), "fo");
  EXPECT_EQ(decode_base64("Zm9v"), "foo");
  EXPECT_EQ(decode_base64("Zm9vYg=="), "foob");
  EXPECT_EQ(decode_base64("Zm9vYmE="), "fooba");
  EXPECT_EQ(decode_base64("Zm9vYmFy"), "foobar");
}

TEST(Base64, PaddingMayBeLeftOut) {
  EXPECT_EQ(decode_base64("Zm8"), "fo");
  EXPECT_EQ(decode_base64("Zg"), "f");
}

TEST(Base64, BothAlphabets) {
  EXPECT_EQ(decode_base64("-_-_"), "\xFB\xFF\xBF");
  EXPECT_EQ(decode_base64("+/+/"), "\xFB\xFF\xBF");
}

TEST(Base64, RefusesWhatIsNot) {
  for (const char* text : {"a", "abcde", "Zg=", "Zm9v=", "Z===", "Zm 9", "Zm.v", "Zg==Zg=="}) {
    EXPECT_FALSE(decode_base64(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace shardwise::config
