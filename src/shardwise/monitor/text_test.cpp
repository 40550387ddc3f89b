#include "shardwise/monitor/text.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <random>

#include "shardwise/monitor/json_text.h"

namespace shardwise::monitor {
namespace {

// Unicode standard, tables 3-8 to 3-11; R stands for U+FFFD.
TEST(Text, BytesThatAreNoUtf8AreReplacedAsUnicodeSays) {
  const auto with_r = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('R', at)) != std::string::npos; at += 3) {
      text.replace(at, 1, "\xef\xbf\xbd");
    }
    return text;
  };
  EXPECT_EQ(printable_text("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82"
                           "A"),
            with_r("RRRRRRRRA"));
  EXPECT_EQ(printable_text("\xed\xa0\x80\xed\xbf\xbf\xed\xaf"
                           "A"),
            with_r("RRRRRRRRA"));
  EXPECT_EQ(printable_text("\xf4\x91\x92\x93\xff"
                           "A\x80\xbf"
                           "B"),
            with_r("RRRRRARRB"));
  EXPECT_EQ(printable_text("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf"
                           "A"),
            with_r("RRRRA"));
  EXPECT_EQ(printable_text("a\xf1\x80\x80\xe1\x80\xc2"
                           "b\x80"
                           "c\x80\xbf"
                           "d"),
            with_r("aRRRbRcRRd"));
  EXPECT_EQ(printable_text("na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf"),
            "na\xc3\xafve \xe6\x97\xa5 \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf");
  EXPECT_EQ(printable_text("\xf0\x9f\x98"), with_r("R"));
}

TEST(Text, TerminalsGetNoControlCharacters) {
  EXPECT_EQ(printable_text("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(printable_text("\x1b[2J"), "\xef\xbf\xbd[2J");
  EXPECT_EQ(printable_text("a\rb\x07\x7f"),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(printable_text("\xc2\x9b"
                           "2J\xc2\xa0"),
            "\xef\xbf\xbd"
            "2J\xc2\xa0");
  EXPECT_EQ(printable_text(std::string_view("a\0b", 3)),
            "a\xef\xbf\xbd"
            "b");
}

TEST(Text, HtmlIsEscaped) {
  EXPECT_EQ(html_text("<a href=\"x\">'&'</a>\n"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;\n");
  EXPECT_EQ(html_text("\x1b\xef\xbf\xbe\xff"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Text, JsonStringsReadBackAsPythonAndOthersReplace) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::uint64_t left = random() % 12; left > 0; --left) {
      // Half of them first bytes and continuations.
      text += static_cast<char>(random() % 2 == 0 ? random() % 256 : 0x80 + random() % 128);
    }
    const std::string json = json_string(text);
    ASSERT_EQ(json.find('\n'), std::string::npos);
    const std::string back = nlohmann::json::parse(json).get<std::string>();
    // nlohmann's replacement of the same bytes.
    const std::string wanted = nlohmann::json::parse(
        nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    ASSERT_EQ(back, wanted) << json;
  }
}

TEST(Text, CutLeavesCharactersWhole) {
  EXPECT_EQ(cut_text("abc", 3), "abc");
  EXPECT_EQ(cut_text("abc", 2), "ab");
  EXPECT_EQ(cut_text("a\xf0\x9f\x98\x80z", 4), "a");
  EXPECT_EQ(cut_text("a\xf0\x9f\x98\x80z", 5), "a\xf0\x9f\x98\x80");
  EXPECT_EQ(cut_text("\x80\x80", 1).size(), 0U);
}

TEST(Text, ConfigurationIsOneLineOrReadable) {
  EXPECT_EQ(compact_json("{\"a\": [1,\n 2.5]}"), "{\"a\":[1,2.5]}");
  EXPECT_EQ(compact_json("no json\n"), "\"no json\\n\"");
  EXPECT_EQ(compact_json(""), "\"\"");
  EXPECT_EQ(indented_json("{\"b\":1,\"a\":{}}"), "{\n  \"b\": 1,\n  \"a\": {}\n}");
  EXPECT_EQ(indented_json("no json"), "no json");
}

}  // namespace
}  // namespace shardwise::monitor
