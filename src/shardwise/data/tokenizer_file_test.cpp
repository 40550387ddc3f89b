#include "shardwise/data/tokenizer_file.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "shardwise/base/error.h"

namespace shardwise::data {
namespace {

using Ids = std::vector<std::int64_t>;

std::string document(const std::string& more, const std::string& model) {
  return "{" + more + (more.empty() ? "" : ",") + "\"model\":{\"type\":\"BPE\"," + model + "}}";
}

constexpr const char* kPowers = R"("vocab":{"a":0,"aa":1,"aaaa":2,"b":3},"merges":["a a","aa aa"])";

double seconds(const Tokenizer& tokenizer, const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  tokenizer.encode(text);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(FileTokenizer, MergesInOrderOfRankAndFromTheLeft) {
  const FileTokenizer tokenizer(document("", kPowers), "t.json", "");
  EXPECT_EQ(tokenizer.encode("aaaaaaa"), (Ids{2, 1, 0}));
  EXPECT_EQ(tokenizer.encode("abaaab"), (Ids{0, 3, 1, 0, 3}));
  EXPECT_EQ(tokenizer.encode(""), Ids());
  EXPECT_EQ(tokenizer.vocabulary_size(), 4);
  EXPECT_EQ(tokenizer.end_of_text(), std::nullopt);
  EXPECT_EQ(tokenizer.decode(Ids{2, 3}, false), "aaaa b");  // without a decoder, as tokenizers does
  EXPECT_THROW(tokenizer.decode(Ids{4}, false), DataError);
  EXPECT_THROW(tokenizer.decode(Ids{-1}, false), DataError);
}

// A word of a million characters: quadratic time would be minutes.
TEST(FileTokenizer, LongWordsTakeNearLinearTime) {
  const FileTokenizer tokenizer(document("", kPowers), "t.json", "");
  EXPECT_LT(seconds(tokenizer, std::string(1'000'000, 'a')), 10.0);
  EXPECT_EQ(tokenizer.encode(std::string(1'000'000, 'a')), Ids(250'000, 2));
}

// Marks of descending classes, which canonical ordering has to move far.
TEST(FileTokenizer, LongRunsOfMarksTakeNearLinearTime) {
  const FileTokenizer tokenizer(document(R"("normalizer":{"type":"NFC"})", kPowers), "t.json", "");
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += i < 100'000 ? "\xCC\x81" : "\xCC\xA3";
  EXPECT_LT(seconds(tokenizer, text), 10.0);
}

TEST(FileTokenizer, EndOfText) {
  const auto with = [](const std::string& token, bool special, const std::string& named) {
    const std::string added = R"("added_tokens":[{"id":4,"content":")" + token + R"(","special":)" +
                              (special ? "true" : "false") + "}]";
    return FileTokenizer(document(added, kPowers), "t.json", named).end_of_text();
  };
  EXPECT_EQ(with("</s>", true, ""), 4);
  EXPECT_EQ(with("<|endoftext|>", true, ""), 4);
  EXPECT_EQ(with("</s>", false, ""), std::nullopt);
  EXPECT_EQ(with("<odd>", true, ""), std::nullopt);
  EXPECT_EQ(with("<odd>", true, "<odd>"), 4);
  EXPECT_EQ(with("<odd>", true, "b"), 3);
  EXPECT_THROW(with("<odd>", true, "</s>"), DataError);
}

TEST(FileTokenizer, RefusesWhatHasNoSingleMeaning) {
  const auto refused = [](const std::string& more, const std::string& model,
                          const std::string& start) {
    try {
      FileTokenizer(document(more, model), "t.json", "");
      ADD_FAILURE() << start;
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, start.size()), start);
    }
  };
  refused("", R"("vocab":{"a":0,"b":0},"merges":[])", "t.json: model.vocab.b: id 0");
  refused(R"("added_tokens":[{"id":4,"content":"c"},{"id":5,"content":"c"}])", kPowers,
          "t.json: added_tokens[1].content: is there twice");
  refused(R"("added_tokens":[{"id":5,"content":"c"}])", kPowers,
          "t.json: added_tokens[0].id: 5 must be 4");
  refused(R"("normalizer":{"type":"Lowercase"},"added_tokens":[{"id":4,"content":"C"},
             {"id":5,"content":"c"}])",
          kPowers, "t.json: added_tokens: \"c\" is looked for in normalized text");
}

}  // namespace
}  // namespace shardwise::data
