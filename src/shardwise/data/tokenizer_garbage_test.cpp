// Broken tokenizer files: DataError that names the file, or a tokenizer that works.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>

#include "shardwise/base/error.h"
#include "shardwise/base/mutation.h"
#include "shardwise/data/tokenizer_file.h"

namespace shardwise::data {
namespace {

const char* const kByteLevel = R"({"version": "1.0", "truncation": null, "padding": null,
 "added_tokens": [{"id": 6, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
   "rstrip": false, "normalized": false, "special": true},
  {"id": 7, "content": "<x>", "single_word": true, "lstrip": true, "rstrip": true,
   "normalized": true, "special": false}],
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
  {"type": "Split", "pattern": {"Regex": "'s|[^\\s\\p{L}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"},
   "behavior": "Isolated", "invert": false},
  {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
 "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false},
 "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
  "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
  "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120ab": 4, "abab": 5},
  "merges": ["a b", ["\u0120", "ab"], "ab ab"]}})";

const char* const kSentencePiece = R"({"version": "1.0",
 "added_tokens": [{"id": 0, "content": "<unk>", "special": true, "normalized": false}],
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"},
  {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
  {"type": "Strip", "strip_left": false, "strip_right": true}]},
 "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first",
  "split": true},
 "decoder": {"type": "Sequence", "decoders": [
  {"type": "Replace", "pattern": {"Regex": "_+?"}, "content": " "}, {"type": "ByteFallback"},
  {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
 "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
  "vocab": {"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2, "_": 3, "a": 4, "_a": 5}, "merges": ["_ a"]}})";

const char* const kWords = R"({"added_tokens": [],
 "normalizer": {"type": "StripAccents"},
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"},
  {"type": "Punctuation", "behavior": "Contiguous"},
  {"type": "Digits", "individual_digits": true},
  {"type": "Split", "pattern": {"Regex": "(a|b)*c|[^\\w&&[^a]]"}, "behavior": "MergedWithNext"}]},
 "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
 "model": {"unk_token": "?", "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>",
  "vocab": {"?": 0, "a": 1, "a</w>": 2, "##b": 3, "##b</w>": 4, "ab": 5, "ab</w>": 6},
  "merges": ["a ##b", "a ##b</w>"]}})";

struct Outcome {
  int valid = 0;
  double slowest = 0;  // seconds to encode
};

void check_works(const FileTokenizer& tokenizer) {
  for (const char* text : {"ab abab's 12 \xC3\xA9 <|endoftext|> a<x> b\n\n", "\xFF_a_a  ", "",
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"}) {
    const std::vector<std::int64_t> ids = tokenizer.encode(text);
    for (const std::int64_t id : ids) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, tokenizer.vocabulary_size());
    }
    tokenizer.decode(ids, false);
    tokenizer.decode(ids, true);
  }
  EXPECT_NE(tokenizer.fingerprint(), 0U);
}

void try_document(const std::string& document, Outcome& outcome) {
  try {
    const FileTokenizer tokenizer(document, "mutant.json", "");
    const auto start = std::chrono::steady_clock::now();
    check_works(tokenizer);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    outcome.slowest = std::max(outcome.slowest, took.count());
    ++outcome.valid;
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("mutant.json: ", 0), 0U) << error.what();
  }
}

TEST(TokenizerGarbage, MutantsAreRefusedOrWork) {
  std::mt19937_64 random(20240531);
  Outcome outcome;
  for (const std::string valid : {kByteLevel, kSentencePiece, kWords}) {
    Outcome first;
    try_document(valid, first);
    ASSERT_EQ(first.valid, 1);
    for (int i = 0; i < 33'400; ++i) {
      const std::string mutant = mutate(valid, random);
      SCOPED_TRACE(i);
      try_document(mutant, outcome);
      ASSERT_FALSE(testing::Test::HasFailure()) << mutant;
    }
  }
  EXPECT_GT(outcome.valid, 1000);
  EXPECT_LT(outcome.slowest, 5.0);
}

// Steps that each double the text.
TEST(TokenizerGarbage, TextsDoNotGrowWithoutEnd) {
  const auto refused = [](const std::string& part, const std::string& list, const std::string& key,
                          const std::string& step) {
    std::string steps;
    for (int i = 0; i < 60; ++i) steps += (i == 0 ? "" : ",") + step;
    const std::string sequence = "{\"type\":\"Sequence\",\"" + list + "\":[" + steps + "]}";
    const FileTokenizer tokenizer(
        "{\"" + part + "\":" + sequence + R"(,"model":{"vocab":{"a":0,"\u0100":1},"merges":[]}})",
        "t.json", "");
    try {
      tokenizer.decode(tokenizer.encode(std::string(1000, key == "a" ? 'a' : '\0')), false);
      ADD_FAILURE() << part;
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()).rfind("t.json: " + part, 0), 0U) << error.what();
    }
  };
  const std::string replace = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  refused("normalizer", "normalizers", "a", replace);
  refused("decoder", "decoders", "a", replace);
  refused("pre_tokenizer", "pretokenizers", "0",
          R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})");
}

// Regular expressions alone: most mutants of a whole document leave them as they are.
TEST(TokenizerGarbage, Expressions) {
  std::mt19937_64 random(7);
  const std::string document = kWords;
  const std::string pattern = R"((a|b)*c|[^\\w&&[^a]])";
  const std::size_t at = document.find(pattern);
  ASSERT_NE(at, std::string::npos);
  Outcome outcome;
  for (int i = 0; i < 10'000; ++i) {
    std::string mutant =
        mutate(R"((?i:a|\\p{Lu}+?)|[^\\s&&[a-c]]{1,3}|(?<!x)\\b\\u0041(a*)*$)", random);
    if (mutant.size() > 200) continue;
    mutant = document.substr(0, at) + mutant + document.substr(at + pattern.size());
    try_document(mutant, outcome);
    ASSERT_FALSE(testing::Test::HasFailure()) << mutant;
  }
  EXPECT_GT(outcome.valid, 100);
}

}  // namespace
}  // namespace shardwise::data
