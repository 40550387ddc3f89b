#include "shardwise/data/tokenize_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "shardwise/base/error.h"
#include "shardwise/io/token_file.h"

namespace shardwise::data {
namespace {

namespace fs = std::filesystem;

class TokenizeFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("tokenize-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  // The documents of the token file, as text.
  std::vector<std::string> run(std::vector<std::string> files, DocumentUnit unit) {
    TokenizeOptions options;
    options.files = std::move(files);
    options.output = path("out.tokens");
    options.unit = unit;
    options.progress = [&](const TokenizeProgress& progress) { last_ = progress; };
    const TokenizeProgress done = tokenize_files(options, *tokenizer_);
    EXPECT_EQ(done.bytes, done.total_bytes);
    EXPECT_EQ(last_.tokens, done.tokens);
    const io::TokenFile file = io::TokenFile::open(options.output);
    EXPECT_EQ(file.header().tokens, done.tokens);
    EXPECT_EQ(file.header().tokenizer, tokenizer_->fingerprint());
    std::vector<std::string> documents;
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < file.header().documents; ++i) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(file.document_end(i) - begin));
      file.read(begin, ids);
      documents.push_back(tokenizer_->decode(ids, false));
      begin = file.document_end(i);
    }
    return documents;
  }

  std::shared_ptr<const Tokenizer> tokenizer_ = make_tokenizer("bytes");
  TokenizeProgress last_;
  fs::path folder_;
};

using Texts = std::vector<std::string>;

TEST_F(TokenizeFilesTest, Units) {
  const std::string a = write("a.txt", "one\r\n\ntwo\n");
  const std::string b = write("b.txt", "three");
  EXPECT_EQ(run({a, b}, DocumentUnit::kFile), (Texts{"one\r\n\ntwo\n", "three"}));
  EXPECT_EQ(run({path("*.txt")}, DocumentUnit::kLine), (Texts{"one", "two", "three"}));
  const std::string c = write("c.jsonl", "{\"text\": \"a\\nb\"}\n\n{\"n\": 1, \"text\": \"c\"}");
  EXPECT_EQ(run({c}, DocumentUnit::kJsonLines), (Texts{"a\nb", "c"}));
}

TEST_F(TokenizeFilesTest, ErrorsNameFileAndLine) {
  const std::string broken = write("a.jsonl", "{\"text\": \"a\"}\n{\"other\": 1}\n");
  try {
    run({broken}, DocumentUnit::kJsonLines);
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("a.jsonl: line 2: text: "), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(fs::exists(path("out.tokens")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);  // nothing is left behind
}

TEST_F(TokenizeFilesTest, WhatIsNoTextIsRefused) {
  const std::string binary = write("a.bin", std::string("a\nb\0c", 5));
  EXPECT_THROW(run({binary}, DocumentUnit::kFile), DataError);
  EXPECT_THROW(run({binary}, DocumentUnit::kLine), DataError);
  EXPECT_FALSE(fs::exists(path("out.tokens")));
  const std::string latin = write("latin.txt", "one\ncaf\xE9\n");
  EXPECT_EQ(run({latin}, DocumentUnit::kLine), (Texts{"one", "caf\xE9"}));
}

TEST_F(TokenizeFilesTest, InputsAreSafe) {
  write("out.tokens", "text");
  fs::create_hard_link(path("out.tokens"), path("same.txt"));
  EXPECT_THROW(run({path("out.tokens")}, DocumentUnit::kFile), UsageError);
  EXPECT_THROW(run({path("same.txt")}, DocumentUnit::kFile), UsageError);
  EXPECT_THROW(run({path("./out.tokens")}, DocumentUnit::kFile), UsageError);
  const std::string text = write("a.txt", "text");
  run({text}, DocumentUnit::kFile);
  fs::rename(path("out.tokens"), path("made.tokens"));
  EXPECT_THROW(run({path("made.tokens")}, DocumentUnit::kFile), UsageError);
}

}  // namespace
}  // namespace shardwise::data
