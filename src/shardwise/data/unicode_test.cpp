#include "shardwise/data/unicode.h"

#include <gtest/gtest.h>

#include <string>

namespace shardwise::data {
namespace {

// Unicode 15.0, section 3.9, tables 3-8 to 3-11.
TEST(Unicode, MaximalSubpartsAreReplaced) {
  const std::string r(kReplacementCharacter);
  const auto repeat = [&](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += r;
    return text;
  };
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), repeat(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), repeat(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            repeat(5) + "A" + repeat(2) + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), repeat(4) + "A");
  EXPECT_EQ(replace_invalid_utf8("a\xC3\xA9\xF0\x9F\x91\x8D"), "a\xC3\xA9\xF0\x9F\x91\x8D");
}

TEST(Unicode, CodePointsThereAndBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "x";
    append_utf8(text, c);
    ASSERT_EQ(valid_utf8_prefix(text), text.size());
    const CodePoint last = last_code_point(text);
    ASSERT_EQ(last.value, c);
    ASSERT_EQ(last.bytes, text.size() - 1);
  }
}

// Unicode 15.0, UAX 15, figures 3 to 6.
TEST(Unicode, NormalForms) {
  const auto all = [](std::string_view text) {
    return std::vector<std::string>{
        normalize(text, NormalForm::kNfd), normalize(text, NormalForm::kNfc),
        normalize(text, NormalForm::kNfkd), normalize(text, NormalForm::kNfkc)};
  };
  using Forms = std::vector<std::string>;
  EXPECT_EQ(all("\u212B"), (Forms{"A\u030A", "\u00C5", "A\u030A", "\u00C5"}));
  EXPECT_EQ(all("\uFB01"), (Forms{"\uFB01", "\uFB01", "fi", "fi"}));
  EXPECT_EQ(all("2\u2075"), (Forms{"2\u2075", "2\u2075", "25", "25"}));
  EXPECT_EQ(all("\u1E9B\u0323"),
            (Forms{"\u017F\u0323\u0307", "\u1E9B\u0323", "s\u0323\u0307", "\u1E69"}));
  EXPECT_EQ(all("q\u0307\u0323"),
            (Forms{"q\u0323\u0307", "q\u0323\u0307", "q\u0323\u0307", "q\u0323\u0307"}));
  EXPECT_EQ(all("plain ASCII, e\u0301 and e"),
            (Forms{"plain ASCII, e\u0301 and e", "plain ASCII, \u00E9 and e",
                   "plain ASCII, e\u0301 and e", "plain ASCII, \u00E9 and e"}));
}

TEST(Unicode, Classes) {
  for (const char32_t c : {U' ', U'\t', U'\v', U'\x85', U'\xA0', U'\u1680', U'\u2028', U'\u3000'}) {
    EXPECT_TRUE(is_space(c)) << static_cast<unsigned>(c);
  }
  for (const char32_t c : {U'a', U'\x1C', U'\u180E', U'\u200B', U'\uFEFF'}) {
    EXPECT_FALSE(is_space(c)) << static_cast<unsigned>(c);
  }
  EXPECT_TRUE(is_number(U'\u0665') && is_number(U'\u2167') && is_number(U'\u00BD'));
  EXPECT_TRUE(is_mark(U'\u0301') && is_mark(U'\u0903') && is_mark(U'\u20DD') && !is_mark(U'a'));
  EXPECT_TRUE(is_punctuation(U'$') && is_punctuation(U'_') && is_punctuation(U'\u00BF'));
  EXPECT_FALSE(is_punctuation(U'\u20AC') || is_punctuation(U'a'));
}

TEST(Unicode, Lower) {
  std::string text;
  for (const char32_t c : {U'A', U'\u00C9', U'\u0130', U'\u01C5', U'\u03A3', U'\u1E9E'}) {
    append_lower(text, c);
  }
  EXPECT_EQ(text, "a\u00E9i\u0307\u01C6\u03C3\u00DF");
}

}  // namespace
}  // namespace shardwise::data
