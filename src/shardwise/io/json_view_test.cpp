#include "shardwise/io/json_view.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>

#include "shardwise/base/check.h"
#include "shardwise/base/mutation.h"
#include "shardwise/io/failure.h"
#include "shardwise/io/temporary_folder.h"

namespace shardwise::io {
namespace {

constexpr const char* kConfig = R"({
  "model_type": "llama", "hidden_size": 64, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "rope_scaling": {"factor": 8.0, "type": "llama3"}, "eos_token_id": [1, 2], "pad": null,
  "model_max_length": 1000000000000000019884624838656, "large": 18446744073709551615,
  "least": -9223372036854775808, "name": "\u00e9\ud83d\ude00"
})";

JsonView config() { return JsonView::parse(kConfig, "config.json"); }

std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  return failure<DataError>([&] { JsonView::parse(text, "f.json", limits); });
}

TEST(JsonView, ValuesOfAllKinds) {
  const JsonView root = config();
  EXPECT_EQ(root.at("model_type").string(), "llama");
  EXPECT_EQ(root.at("hidden_size").integer(1, 64), 64);
  EXPECT_EQ(root.at("hidden_size").number(), 64.0);
  EXPECT_EQ(root.at("rms_norm_eps").number(), 1e-5);
  EXPECT_FALSE(root.at("tie_word_embeddings").boolean());
  EXPECT_EQ(root.at("rope_scaling").at("factor").number(), 8.0);
  EXPECT_EQ(root.at("rope_scaling").at("factor").field(), "rope_scaling.factor");
  EXPECT_EQ(root.at("eos_token_id").items().at(1).integer(0, 9), 2);
  EXPECT_EQ(root.at("eos_token_id").items().at(1).field(), "eos_token_id[1]");
  EXPECT_EQ(root.at("name").string(), "é😀");
  EXPECT_EQ(root.at("least").integer(INT64_MIN, 0), INT64_MIN);
  EXPECT_EQ(root.at("rope_scaling").text(), R"({"factor":8.0,"type":"llama3"})");
  EXPECT_EQ(root.field(), "");
}

TEST(JsonView, NullIsAsGoodAsMissing) {
  const JsonView root = config();
  EXPECT_FALSE(root.has("pad"));
  EXPECT_FALSE(root.find("pad"));
  EXPECT_EQ(root.integer_or("pad", 7, 0, 9), 7);
  EXPECT_EQ(root.string_or("absent", "x"), "x");
  EXPECT_EQ(root.number_or("absent", 0.5), 0.5);
  EXPECT_TRUE(root.boolean_or("absent", true));
  EXPECT_EQ(root.integer_or("hidden_size", 7, 0, 99), 64);
  EXPECT_FALSE(root.has("absent"));
  EXPECT_FALSE(root.at("hidden_size").has("absent"));
}

TEST(JsonView, MembersKeepTheOrderOfTheFile) {
  std::string names;
  for (const auto& [name, value] : JsonView::parse(R"({"b":1,"a":2,"c":3})", "f").members()) {
    names += name;
    EXPECT_EQ(value.field(), name);
  }
  EXPECT_EQ(names, "bac");
}

TEST(JsonView, AViewHoldsTheDocument) {
  const JsonView inner = config().at("rope_scaling").at("type");
  EXPECT_EQ(inner.string(), "llama3");
  EXPECT_EQ(inner.source(), "config.json");
}

TEST(JsonView, ErrorsNameFileFieldAndWhatIsAllowed) {
  const JsonView root = config();
  const auto message = [](auto call) { return failure<DataError>(call); };
  EXPECT_EQ(message([&] { root.at("hidden_size").integer(1, 63); }),
            "config.json: hidden_size: must be an integer from 1 to 63, not 64");
  EXPECT_EQ(message([&] { root.at("rope_scaling").at("type").number(); }),
            "config.json: rope_scaling.type: must be a number, not \"llama3\"");
  EXPECT_EQ(message([&] { root.at("rope_scaling").at("beta"); }),
            "config.json: rope_scaling.beta: is missing or null; it must be given");
  EXPECT_EQ(message([&] { root.at("hidden_size").at("x"); }),
            "config.json: hidden_size: must be an object, not 64");
  EXPECT_EQ(message([&] { root.at("rope_scaling").items(); }),
            "config.json: rope_scaling: must be a list, not an object");
  EXPECT_EQ(message([&] { root.at("eos_token_id").string(); }),
            "config.json: eos_token_id: must be a string, not a list");
  EXPECT_EQ(message([&] { root.boolean_or("hidden_size", true); }),
            "config.json: hidden_size: must be true or false, not 64");
  EXPECT_EQ(message([&] { root.string(); }), "config.json: must be a string, not an object");
  EXPECT_EQ(message([&] { JsonView::parse("[]", "f").integer_or("a", 1, 0, 2); }),
            "f: must be an object, not a list");
}

TEST(JsonView, IntegersBeyond64BitsAreNumbers) {
  const JsonView root = config();
  EXPECT_EQ(root.at("model_max_length").number(), 1e30);
  for (const char* name : {"model_max_length", "large", "rms_norm_eps"}) {
    EXPECT_TRUE(contains(failure<DataError>([&] { root.at(name).integer(INT64_MIN, INT64_MAX); }),
                         "must be an integer"));
  }
}

TEST(JsonView, WhatIsNoJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1,]",
                           "{\"a\":}",
                           "NaN",
                           "Infinity",
                           "-Infinity",
                           "1e999",
                           "01",
                           "'a'",
                           "// c\n1",
                           "1 2",
                           "\"\xFF\"",
                           "\"\xED\xA0\x80\"",
                           "\"\\ud800\"",
                           "\"\n\"",
                           "\xC3",
                           "tru",
                           "\"\xC0\x80\"",
                           "\"\xF4\x90\x80\x80\"",
                           "{\"a\xFF\":1}"}) {
    const std::string message = refusal(text);
    EXPECT_TRUE(message.starts_with("f.json: ")) << message;
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
  }
  EXPECT_TRUE(contains(refusal("{\n \"a\": tru}"), "line 2"));
}

TEST(JsonView, AKeyTwiceIsAnError) {
  EXPECT_EQ(refusal(R"({"x":[0,{"b":1,"a":2,"b":3}]})"),
            "f.json: x[2].b: is there twice; an object has each key once");
  EXPECT_NO_THROW(JsonView::parse(R"({"a":{"a":{"a":1}},"b":{"a":1}})", "f"));
}

TEST(JsonView, Limits) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_NO_THROW(JsonView::parse(nested(64), "f"));
  EXPECT_TRUE(contains(refusal(nested(65)), "more than 64 objects and lists"));
  EXPECT_TRUE(contains(refusal(std::string(1'000'000, '[')), "more than 64"));
  EXPECT_NO_THROW(JsonView::parse("[1,2]", "f", {.bytes = 5, .values = 3}));
  EXPECT_TRUE(contains(refusal("[1,2]", {.bytes = 4}), "5 bytes"));
  EXPECT_TRUE(contains(refusal("[1,2]", {.values = 2}), "more than 2 values"));
}

TEST(JsonView, LongTextsFromTheFileAreCutInMessages) {
  const std::string text(1'000'000, 'x');
  EXPECT_LT(refusal("{\"" + text + "\":tru}").size(), 500U);
  EXPECT_LT(refusal("\"" + text).size(), 500U);
  const JsonView root = JsonView::parse("{\"" + text + "\":\"" + text + "\"}", "f");
  EXPECT_LT(failure<DataError>([&] { root.at(text).boolean(); }).size(), 500U);
  const JsonView lines = JsonView::parse(R"({"a\n\u0000":1})", "f");
  EXPECT_TRUE(contains(failure<DataError>([&] { lines.members()[0].second.string(); }),
                       "f: a\\x0A\\x00: must"));
}

TEST(JsonView, Files) {
  const TemporaryFolder folder;
  EXPECT_EQ(JsonView::read(folder.put("a.json", "[3]")).items()[0].integer(0, 3), 3);
  EXPECT_TRUE(contains(failure<IoError>([&] { JsonView::read(folder.path("absent")); }),
                       folder.path("absent")));
  EXPECT_TRUE(contains(failure<IoError>([&] { JsonView::read(folder.path()); }), "is a folder"));
  EXPECT_TRUE(contains(
      failure<DataError>([&] { JsonView::read(folder.path("a.json"), {.bytes = 2}); }), "a.json"));
  EXPECT_TRUE(contains(failure<IoError>([] { JsonView::read("/dev/zero"); }), "device"));
}

// A search among the members for each new key would take minutes here.
TEST(JsonView, AVocabularyOfAQuarterMillionIsQuick) {
  std::string text = "{";
  for (int i = 0; i < 250'000; ++i) {
    text += concat(i == 0 ? "" : ",", "\"token", i, "\":", i);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto members = JsonView::parse(text + "}", "f").members();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  ASSERT_EQ(members.size(), 250'000U);
  EXPECT_EQ(members[249'999].second.integer(0, 250'000), 249'999);
}

// Asks for everything; a document that parses must be whole.
std::size_t walk(const JsonView& view) {
  std::size_t values = 1;
  if (view.is_object()) {
    for (const auto& [name, value] : view.members()) {
      values += walk(value);
    }
  } else if (view.is_array()) {
    for (const JsonView& value : view.items()) {
      values += walk(value);
    }
  }
  return values;
}

TEST(JsonViewFuzz, MutantsParseOrGiveDataErrors) {
  std::mt19937_64 random(20240301);
  int parsed = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string text = mutate(kConfig, random);
    try {
      EXPECT_GE(walk(JsonView::parse(text, "mutant")), 1U);
      ++parsed;
    } catch (const DataError& error) {
      ASSERT_TRUE(std::string(error.what()).starts_with("mutant: ")) << error.what();
    }
  }
  EXPECT_GT(parsed, 1'000);
  EXPECT_LT(parsed, 90'000);
}

}  // namespace
}  // namespace shardwise::io
