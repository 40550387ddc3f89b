#include "shardwise/config/json_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "shardwise/base/error.h"

namespace shardwise::config {
namespace {

Value parse(const std::string& text) {
  std::vector<std::string> duplicates;
  Value value = parse_json(text, "doc", &duplicates);
  EXPECT_TRUE(duplicates.empty());
  return value;
}

std::vector<std::string> duplicates_in(const std::string& text) {
  std::vector<std::string> duplicates;
  parse_json(text, "doc", &duplicates);
  return duplicates;
}

std::string error_of(const std::string& text) {
  try {
    parse(text);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(JsonReader, ReadsEveryKindOfValue) {
  const Value value =
      parse(R"({"a": null, "b": true, "c": -3, "d": 2.5, "e": "x\nä", "f": [1, {}]})");
  EXPECT_TRUE(value.find("a")->is_null());
  EXPECT_TRUE(value.find("b")->boolean);
  EXPECT_EQ(value.find("c")->integer, -3);
  EXPECT_EQ(value.find("d")->number, 2.5);
  EXPECT_EQ(value.find("e")->text, "x\nä");
  EXPECT_EQ(value.find("f")->items.size(), 2U);
  EXPECT_EQ(to_text(value),
            R"({"a": null, "b": true, "c": -3, "d": 2.5, "e": "x\nä", "f": [1, {}]})");
}

TEST(JsonReader, TellsTheLinesOfKeys) {
  std::vector<std::string> duplicates;
  KeyLines lines;
  parse_json("{\"a\": 1,\n\"b\": {/* \n */ \"c\": [{\n\"d\": \"\\n\"}], \"e\"\n: 2}\n, \"f\": 0}",
             "doc", &duplicates, &lines);
  const KeyLines expected = {{"a", 1}, {"b", 2}, {"b.c", 3}, {"b.c[0].d", 4}, {"b.e", 4}, {"f", 6}};
  EXPECT_EQ(lines, expected);
}

TEST(JsonReader, TextOfAValueReadsBackEqual) {
  const std::string text = R"({"a": [0.1, 1e300, -1e-300, 5e8, 9223372036854775807],
    "b": {"c": {}, "d": [], "quote\"\\": "\u0001\t"}})";
  const Value value = parse(text);
  EXPECT_EQ(parse(to_text(value)), value);
  EXPECT_EQ(parse(to_text(value, 2)), value);
}

TEST(JsonReader, SkipsCommentsAndTrailingCommas) {
  const Value value = parse(
      "// first\n{ # second\n \"a\": 1, /* \"a\": 2, */ \"b\": [1, 2, // x\n ], \"c\": \"// # "
      "/*\",}\n#");
  EXPECT_EQ(to_text(value), R"({"a": 1, "b": [1, 2], "c": "// # /*"})");
}

TEST(JsonReader, CommasWithoutAValueStayErrors) {
  for (const char* text : {"[,]", "{,}", "[1,,]", "[,1]", "{\"a\":,}", "{\"a\":1,,\"b\":2}"}) {
    EXPECT_TRUE(contains(error_of(text), "not valid JSON")) << text;
  }
}

TEST(JsonReader, ReadsPythonsInfinityAndNan) {
  const Value value = parse(R"([Infinity, -Infinity, NaN, "Infinity", "NaN"])");
  EXPECT_TRUE(std::isinf(value.items[0].number) && value.items[0].number > 0);
  EXPECT_TRUE(std::isinf(value.items[1].number) && value.items[1].number < 0);
  EXPECT_TRUE(std::isnan(value.items[2].number));
  EXPECT_EQ(value.items[3].text, "Infinity");
  EXPECT_EQ(value.items[4].text, "NaN");
}

TEST(JsonReader, BareWordsOtherThanTheseAreErrors) {
  for (const char* text : {"[Infinit]", "[nan]", "[inf]", "[True]", "[None]", "['a']", "{a: 1}"}) {
    EXPECT_TRUE(contains(error_of(text), "not valid JSON")) << text;
  }
}

TEST(JsonReader, DescribesEveryDuplicate) {
  const auto duplicates =
      duplicates_in(R"({"a": 1, "b": {"c": [{"d": 1, "d": 2}]}, "a": 2, "a": 3})");
  ASSERT_EQ(duplicates.size(), 3U);
  EXPECT_TRUE(contains(duplicates[0], "b.c[0].d: the key \"d\" is given twice"));
  EXPECT_TRUE(contains(duplicates[1], "a: the key \"a\" is given twice"));
}

TEST(JsonReader, SameNameInTwoObjectsIsNoDuplicate) {
  EXPECT_TRUE(
      duplicates_in(R"({"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 2}]})").empty());
}

TEST(JsonReader, NamesLineAndColumnOfAMistake) {
  const std::string error = error_of("{\n  \"a\": 1\n  \"b\": 2\n}");
  EXPECT_TRUE(contains(error, "doc (line 3, column ")) << error;
  EXPECT_FALSE(contains(error, "json.exception")) << error;
}

TEST(JsonReader, PositionsCountCommentsAndWideCharacters) {
  const std::string error = error_of("/* a\n b */ {\"ä\": ?}");
  EXPECT_TRUE(contains(error, "line 2, column 13")) << error;
}

TEST(JsonReader, EmptyTextSaysWhatIsTheLeast) {
  for (const char* text : {"", " \n\t", "// only a comment", "\xEF\xBB\xBF"}) {
    EXPECT_TRUE(contains(error_of(text), "doc is empty; the least that works")) << text;
  }
}

TEST(JsonReader, SkipsAByteOrderMark) { EXPECT_EQ(to_text(parse("\xEF\xBB\xBF{}")), "{}"); }

TEST(JsonReader, RefusesWhatIsNotUtf8) {
  const std::vector<std::string> texts = {"{\"a\": \"\xFF\"}",     "\xC0\xAF",
                                          "{\"\xED\xA0\x80\": 1}", "\"\xF5\x80\x80\x80\"",
                                          "\"\xE2\x82\"",          "\xFF\xFE{\0}\0"};
  for (const std::string& text : texts) {
    EXPECT_TRUE(contains(error_of(text), "is not UTF-8")) << text;
  }
  EXPECT_EQ(parse("\"\xF0\x9F\x98\x80\"").text, "\xF0\x9F\x98\x80");
}

TEST(JsonReader, RefusesNulBytes) {
  const std::string text("{\"a\": 1}\0{", 10);
  EXPECT_TRUE(contains(error_of(text), "is NUL"));
}

TEST(JsonReader, RefusesTextAfterTheDocument) {
  EXPECT_TRUE(contains(error_of("{} {}"), "not valid JSON"));
}

TEST(JsonReader, LimitsNesting) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_EQ(error_of(nested(kMaxJsonDepth)), "");
  EXPECT_TRUE(contains(error_of(nested(kMaxJsonDepth + 1)), "nested more than 64 deep"));
  EXPECT_TRUE(contains(error_of(std::string(1'000'000, '[')), "nested more than 64 deep"));
  EXPECT_FALSE(error_of(std::string(1'000'000, '{')).empty());
}

TEST(JsonReader, LimitsSize) {
  EXPECT_TRUE(contains(error_of(std::string(kMaxJsonBytes + 1, ' ')), "bytes; a configuration"));
}

TEST(JsonReader, HugeNumbers) {
  EXPECT_EQ(parse("[9223372036854775807]").items[0].integer, 9223372036854775807);
  EXPECT_EQ(parse("[9223372036854775808]").items[0].kind, Value::Kind::kFloat);
  EXPECT_EQ(parse("[123456789012345678901234567890]").items[0].kind, Value::Kind::kFloat);
  EXPECT_TRUE(contains(error_of("[1, 1e999]"), "line 1, column"));
  EXPECT_TRUE(contains(error_of("[1, 1e999]"), "too large for a 64-bit float"));
}

}  // namespace
}  // namespace shardwise::config
