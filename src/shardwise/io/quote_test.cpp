#include "shardwise/io/quote.h"

#include <gtest/gtest.h>

namespace shardwise::io {
namespace {

using namespace std::string_literals;

TEST(Quote, OneLine) {
  EXPECT_EQ(printable("a\n\0\x7F é"s), "a\\x0A\\x00\\x7F é");
  EXPECT_EQ(quoted("a"), "\"a\"");
  EXPECT_EQ(quoted(""), "\"\"");
}

TEST(Quote, CutsBetweenCharacters) {
  EXPECT_EQ(printable("aaaa", 4), "aaaa");
  EXPECT_EQ(printable("aaaaa", 4), "aaaa...");
  EXPECT_EQ(printable("aé", 2), "a...");           // two bytes
  EXPECT_EQ(printable("a\u20AC", 3), "a...");      // three
  EXPECT_EQ(printable("a\U0001F600", 4), "a...");  // four
  EXPECT_EQ(printable("a\U0001F600b", 5), "a\U0001F600...");
}

}  // namespace
}  // namespace shardwise::io
