#include "shardwise/io/token_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "shardwise/base/memory_file.h"
#include "shardwise/base/mutation.h"
#include "shardwise/io/failure.h"
#include "shardwise/io/temporary_folder.h"

namespace shardwise::io {
namespace {

using Tokens = std::vector<std::int64_t>;

std::string little_endian(std::uint64_t number, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) {
    text += static_cast<char>(number >> (8 * i) & 255U);
  }
  return text;
}

// A file byte by byte as the header comment has it, with any number wrong.
struct Layout {
  std::string magic = "SWTOKENS";
  std::uint64_t version = 1, token_bytes = 2, tokens = 3, documents = 2, vocabulary = 300;
  std::uint64_t tokenizer = 0x1122334455667788;
  std::string reserved = std::string(16, '\0');
  std::string data = little_endian(7, 2) + little_endian(299, 2) + little_endian(0, 2);
  std::string padding = std::string(2, '\0');
  std::vector<std::uint64_t> ends = {1, 3};

  std::string text() const {
    std::string text = magic + little_endian(version, 4) + little_endian(token_bytes, 4);
    for (const std::uint64_t number : {tokens, documents, vocabulary, tokenizer}) {
      text += little_endian(number, 8);
    }
    text += reserved + data + padding;
    for (const std::uint64_t end : ends) {
      text += little_endian(end, 8);
    }
    return text;
  }
};

Tokens all_tokens(const TokenFile& file) {
  Tokens tokens(static_cast<std::size_t>(file.header().tokens));
  file.read(0, tokens);
  return tokens;
}

TEST(TokenFile, ReadsTheLayout) {
  const TemporaryFolder folder;
  const TokenFile file = TokenFile::open(folder.put("a", Layout().text()));
  EXPECT_EQ(file.header().token_bytes, 2);
  EXPECT_EQ(file.header().vocabulary, 300);
  EXPECT_EQ(file.header().tokenizer, 0x1122334455667788U);
  EXPECT_EQ(all_tokens(file), (Tokens{7, 299, 0}));
  Tokens part(2);
  file.read(1, part);
  EXPECT_EQ(part, (Tokens{299, 0}));
  ASSERT_EQ(file.header().documents, 2);
  EXPECT_EQ(file.document_end(0), 1);
  EXPECT_EQ(file.document_end(1), 3);
}

TEST(TokenFile, WritesTheLayout) {
  const TemporaryFolder folder;
  TokenFileWriter writer(folder.path("a"), 300, 0x1122334455667788);
  writer.add_document(Tokens{7});
  writer.add_document(Tokens{});
  writer.add_document(Tokens{299, 0});
  EXPECT_EQ(writer.tokens(), 3);
  writer.commit();
  EXPECT_EQ(folder.get("a"), Layout().text());
}

TEST(TokenFile, WrittenFilesReadBack) {
  const TemporaryFolder folder;
  std::mt19937_64 random(1);
  for (const std::int64_t vocabulary : {1LL, 65'536LL, 65'537LL, 1LL << 32}) {
    TokenFileWriter writer(folder.path("a"), vocabulary, 0);
    Tokens expected, ends;
    for (std::size_t length : {1, 5'000, 3, 4'096, 1}) {
      Tokens tokens(length);
      for (std::int64_t& token : tokens) {
        token = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocabulary));
      }
      tokens.back() = vocabulary - 1;
      writer.add_document(tokens);
      expected.insert(expected.end(), tokens.begin(), tokens.end());
      ends.push_back(static_cast<std::int64_t>(expected.size()));
    }
    writer.commit();
    const TokenFile file = TokenFile::open(folder.path("a"));
    EXPECT_EQ(file.header().token_bytes, vocabulary <= 65'536 ? 2 : 4);
    EXPECT_EQ(file.header().vocabulary, vocabulary);
    EXPECT_EQ(all_tokens(file), expected);
    ASSERT_EQ(file.header().documents, static_cast<std::int64_t>(ends.size()));
    for (std::size_t i = 0; i < ends.size(); ++i) {
      EXPECT_EQ(file.document_end(static_cast<std::int64_t>(i)), ends[i]);
    }
  }
}

struct Damage {
  const char* what;  // must be in the message
  void (*apply)(Layout&);
};

const Damage kDamages[] = {
    {"magic", [](Layout& l) { l.magic = "SWTOKENX"; }},
    {"version: 2", [](Layout& l) { l.version = 2; }},
    {"bytes a token: 3", [](Layout& l) { l.token_bytes = 3; }},
    {"bytes a token: 0", [](Layout& l) { l.token_bytes = 0; }},
    {"number of tokens",
     [](Layout& l) {
       l.token_bytes = 4;
       l.tokens = UINT64_MAX / 4;
     }},
    {"number of tokens: 0", [](Layout& l) { l.tokens = 0; }},
    {"number of tokens", [](Layout& l) { l.tokens = UINT64_MAX; }},
    {"number of tokens", [](Layout& l) { l.tokens = std::uint64_t{1} << 63; }},
    {"number of tokens", [](Layout& l) { l.tokens = 1000; }},
    {"number of documents: 0", [](Layout& l) { l.documents = 0; }},
    {"number of documents", [](Layout& l) { l.documents = 4; }},
    {"number of documents", [](Layout& l) { l.documents = UINT64_MAX; }},
    {"number of documents", [](Layout& l) { l.documents = 3; }},
    {"8 bytes more", [](Layout& l) { l.documents = 1; }},
    {"vocabulary size: 0", [](Layout& l) { l.vocabulary = 0; }},
    {"vocabulary size: 65537", [](Layout& l) { l.vocabulary = 65'537; }},
    {"reserved", [](Layout& l) { l.reserved[15] = 1; }},
    {"padding", [](Layout& l) { l.padding[1] = 1; }},
    {"end of document 1: 1", [](Layout& l) { l.ends = {1, 1}; }},
    {"end of document 0: 0", [](Layout& l) { l.ends = {0, 3}; }},
    {"end of the last document: 4", [](Layout& l) { l.ends = {1, 4}; }},
    {"end of the last document: 2", [](Layout& l) { l.ends = {1, 2}; }},
    {"1 bytes more", [](Layout& l) { l.data += '\0'; }},
};

TEST(TokenFile, EveryFieldIsCheckedAgainstTheFile) {
  const TemporaryFolder folder;
  for (const Damage& damage : kDamages) {
    Layout layout;
    damage.apply(layout);
    const std::string path = folder.put("a", layout.text());
    const std::string message = failure<DataError>([&] { TokenFile::open(path); });
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
    EXPECT_TRUE(contains(message, damage.what)) << message;
  }
}

TEST(TokenFile, EveryPrefixIsRefused) {
  const TemporaryFolder folder;
  const std::string text = Layout().text();
  for (std::size_t length = 0; length < text.size(); ++length) {
    folder.put("a", text.substr(0, length));
    failure<DataError>([&] { TokenFile::open(folder.path("a")); });
  }
}

TEST(TokenFile, ATokenOutsideOfTheVocabularyIsNamed) {
  const TemporaryFolder folder;
  Layout layout;
  layout.vocabulary = 299;
  const TokenFile file = TokenFile::open(folder.put("a", layout.text()));
  EXPECT_TRUE(contains(failure<DataError>([&] { all_tokens(file); }), "token 1: 299"));
  Tokens one(1);
  file.read(2, one);
  EXPECT_EQ(one, Tokens{0});
}

TEST(TokenFile, PlacesOutsideOfTheFileAreBugs) {
  const TemporaryFolder folder;
  const TokenFile file = TokenFile::open(folder.put("a", Layout().text()));
  Tokens two(2);
  EXPECT_THROW(file.read(2, two), InternalError);
  EXPECT_THROW(file.read(-1, two), InternalError);
  EXPECT_THROW(file.read(INT64_MAX, two), InternalError);
  EXPECT_THROW(file.document_end(2), InternalError);
  EXPECT_THROW(file.document_end(-1), InternalError);
  EXPECT_NO_THROW(file.read(3, {}));
}

TEST(TokenFile, Magic) {
  const TemporaryFolder folder;
  EXPECT_TRUE(TokenFile::has_magic(folder.put("a", "SWTOKENS and more")));
  EXPECT_FALSE(TokenFile::has_magic(folder.put("a", "SWTOKEN")));
  EXPECT_FALSE(TokenFile::has_magic(folder.put("a", "")));
  EXPECT_FALSE(TokenFile::has_magic(folder.put("a", "some text")));
  failure<IoError>([&] { TokenFile::has_magic(folder.path("absent")); });
}

TEST(TokenFileWriter, WhatCannotBeWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.path("a");
  EXPECT_TRUE(contains(failure<DataError>([&] { TokenFileWriter(path, 0, 0); }), "vocabulary"));
  EXPECT_TRUE(contains(
      failure<DataError>([&] { TokenFileWriter(path, (std::int64_t{1} << 32) + 1, 0); }), path));
  {
    TokenFileWriter writer(path, 10, 0);
    EXPECT_TRUE(contains(failure<DataError>([&] { writer.commit(); }), "no tokens"));
    EXPECT_TRUE(contains(failure<DataError>([&] { writer.add_document(Tokens{3, 10}); }), "10"));
    failure<DataError>([&] { writer.add_document(Tokens{-1}); });
    EXPECT_EQ(writer.tokens(), 0);
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(TokenFileFuzz, MutantsOpenOrGiveDataErrors) {
  const MemoryFile file;
  std::mt19937_64 random(20240302);
  const std::string valid = Layout().text();
  int opened = 0;
  for (int i = 0; i < 100'000; ++i) {
    file.set(mutate(valid, random));
    try {
      const TokenFile tokens = TokenFile::open(file.path());
      ++opened;
      ASSERT_LE(tokens.header().tokens, 10'000);
      ASSERT_EQ(tokens.document_end(tokens.header().documents - 1), tokens.header().tokens);
      for (const std::int64_t token : all_tokens(tokens)) {
        ASSERT_LT(token, tokens.header().vocabulary);
      }
    } catch (const DataError& error) {
      ASSERT_TRUE(contains(error.what(), file.path())) << error.what();
    }
  }
  EXPECT_GT(opened, 1'000);
  EXPECT_LT(opened, 90'000);
}

}  // namespace
}  // namespace shardwise::io
