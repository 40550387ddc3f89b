#include "shardwise/data/corpus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "shardwise/base/error.h"
#include "shardwise/io/token_file.h"

namespace shardwise::data {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kEnd = 300;

// Bytes, and an end of text; not what the corpus knows as the bytes tokenizer.
class WithEnd : public Tokenizer {
 public:
  std::int64_t vocabulary_size() const override { return kEnd + 1; }
  Ids encode(std::string_view text) const override {
    Ids ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(std::span<const std::int64_t>, bool) const override { return ""; }
  std::optional<std::int64_t> end_of_text() const override { return kEnd; }
  std::uint64_t fingerprint() const override { return 77; }
};

class CorpusTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("corpus-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  std::string write_tokens(const std::string& name, const std::vector<Ids>& documents,
                           std::int64_t vocabulary, std::uint64_t tokenizer) const {
    io::TokenFileWriter writer(path(name), vocabulary, tokenizer);
    for (const Ids& document : documents) writer.add_document(document);
    writer.commit();
    return path(name);
  }

  static CorpusOptions options(std::vector<std::string> files, std::int64_t length,
                               double held_out = 0) {
    CorpusOptions made;
    made.files = std::move(files);
    made.length = length;
    made.held_out = held_out;
    return made;
  }

  // All samples behind one another; each is also read alone.
  static Ids all(const Corpus& corpus) {
    Ids ids;
    for (std::int64_t i = 0; i < corpus.size(); ++i) {
      Ids sample(static_cast<std::size_t>(corpus.length()));
      corpus.read(i, sample);
      ids.insert(ids.end(), sample.begin(), sample.end());
    }
    return ids;
  }

  static std::string message(const CorpusOptions& options, const Tokenizer& tokenizer) {
    try {
      open_corpus(options, tokenizer);
    } catch (const Error& error) {
      return std::string(error_kind_name(error.kind())) + ": " + error.what();
    }
    return "";
  }

  const std::shared_ptr<const Tokenizer> bytes_ = make_tokenizer("bytes");
  const WithEnd with_end_;
  fs::path folder_;
};

TEST_F(CorpusTest, BytesAreJoinedWithoutSeparator) {
  const CorpusOptions given = options({write("b.txt", "hello"), write("a.txt", "\xFFworld")}, 4);
  const Split split = open_corpus(given, *bytes_);
  EXPECT_EQ(split.train->size(), 2);
  EXPECT_EQ(split.train->length(), 4);
  EXPECT_EQ(split.train->vocabulary(), 256);
  EXPECT_EQ(split.held_out, nullptr);
  EXPECT_EQ(all(*split.train), (Ids{'h', 'e', 'l', 'l', 'o', 0xFF, 'w', 'o'}));
}

TEST_F(CorpusTest, EndOfTextBetweenDocumentsOnly) {
  const std::string text = write("a.txt", "ab");
  const std::string tokens = write_tokens("b.tokens", {{1, 2, 3}, {4}, {5, 6}}, 301, 77);
  const std::string last = write("c.txt", "z");
  const Ids expected = {'a', 'b', kEnd, 1, 2, 3, kEnd, 4, kEnd, 5, 6, kEnd, 'z'};
  // Windows of every length begin and end in every place.
  for (std::int64_t length = 1; length <= 13; ++length) {
    const Split split = open_corpus(options({text, tokens, last}, length), with_end_);
    Ids part(expected.begin(), expected.begin() + 13 / length * length);
    EXPECT_EQ(all(*split.train), part) << length;
  }
}

// Where the documents of each sample begin, if `begins` are their places in all tokens.
std::vector<Ids> expected_begins(const Ids& begins, std::int64_t samples, std::int64_t length) {
  std::vector<Ids> expected;
  for (std::int64_t first = 0; first < samples * length; first += length) {
    Ids& places = expected.emplace_back(1, 0);
    for (const std::int64_t place : begins) {
      if (place > first && place < first + length) places.push_back(place - first);
    }
  }
  return expected;
}

TEST_F(CorpusTest, DocumentsBeginBehindEndsOfText) {
  const std::string text = write("a.txt", "ab");
  const std::string tokens = write_tokens("b.tokens", {{1, 2, 3}, {4}, {5, 6}}, 301, 77);
  const std::string last = write("c.txt", "z");
  const auto begins_of = [](const Corpus& corpus) {
    std::vector<Ids> found;
    for (std::int64_t i = 0; i < corpus.size(); ++i) found.push_back(corpus.document_begins(i));
    return found;
  };
  for (std::int64_t length = 1; length <= 13; ++length) {
    CorpusOptions given = options({text, tokens, last}, length);
    EXPECT_FALSE(open_corpus(given, with_end_).train->separates_documents());
    given.separate_documents = true;
    const Split split = open_corpus(given, with_end_);
    EXPECT_TRUE(split.train->separates_documents());
    // a b end | 1 2 3 end | 4 end | 5 6 end | z
    EXPECT_EQ(begins_of(*split.train), expected_begins({0, 3, 7, 9, 12}, 13 / length, length));
    given.files = {tokens};
    if (length <= 8) {
      const auto alone = open_corpus(given, with_end_).train;
      EXPECT_EQ(begins_of(*alone), expected_begins({0, 4, 6}, 8 / length, length));
    }
  }
  CorpusOptions given = options({text, last, text}, 1);
  given.separate_documents = true;
  given.length = 5;  // ab | z | ab, and no end of text
  const auto bytes = open_corpus(given, *bytes_).train;
  EXPECT_EQ(begins_of(*bytes), expected_begins({0, 2, 3}, 1, 5));
}

TEST_F(CorpusTest, SamplesInRowsHaveTheirDocumentsBehindOneAnother) {
  const std::string tokens = write_tokens("b.tokens", {{1, 2, 3}, {4}, {5, 6}}, 301, 77);
  CorpusOptions given = options({tokens}, 4);
  Ids out(8);
  const Ids samples{1, 0};
  EXPECT_TRUE(read_samples(*open_corpus(given, with_end_).train, samples, out).offsets.empty());
  given.separate_documents = true;
  const auto documents = read_samples(*open_corpus(given, with_end_).train, samples, out);
  EXPECT_EQ(out, (Ids{4, kEnd, 5, 6, 1, 2, 3, kEnd}));
  EXPECT_EQ(documents.offsets, (std::vector<std::int32_t>{0, 2, 4, 8}));
  EXPECT_EQ(documents.longest, 4);
}

TEST_F(CorpusTest, TokenFileAlone) {
  std::mt19937_64 random(3);
  std::vector<Ids> documents(200);
  Ids expected;
  for (Ids& document : documents) {
    document.resize(1 + random() % 7);
    for (std::int64_t& id : document) id = static_cast<std::int64_t>(random() % kEnd);
    if (!expected.empty()) expected.push_back(kEnd);
    expected.insert(expected.end(), document.begin(), document.end());
  }
  const std::string file = write_tokens("a.tokens", documents, 301, 0);
  for (const std::int64_t length : {1, 2, 5, 64}) {
    Ids got = all(*open_corpus(options({file}, length), with_end_).train);
    EXPECT_EQ(got, Ids(expected.begin(), expected.begin() + static_cast<std::int64_t>(got.size())));
    EXPECT_LT(static_cast<std::int64_t>(expected.size() - got.size()), length);
  }
}

TEST_F(CorpusTest, TokenFilesWithoutSeparator) {
  const std::string file = write_tokens("a.tokens", {{1, 2}, {3}}, 256, bytes_->fingerprint());
  EXPECT_EQ(all(*open_corpus(options({file, file}, 3), *bytes_).train), (Ids{1, 2, 3, 1, 2, 3}));
}

TEST_F(CorpusTest, EmptyFilesAreLeftOut) {
  const auto files = {write("0.txt", ""), write("1.txt", "ab"), write("2.txt", ""),
                      write("3.txt", "c")};
  EXPECT_EQ(all(*open_corpus(options(files, 1), with_end_).train), (Ids{'a', 'b', kEnd, 'c'}));
}

TEST_F(CorpusTest, PatternsAreSorted) {
  write("x2.txt", "2");
  write("x1.txt", "1");
  write("x10.txt", "0");
  const std::string odd = write("[y].txt", "y");  // a name that exists is no pattern
  fs::create_directories(path("x3.txt"));
  const Split split = open_corpus(options({odd, path("x*.txt")}, 1), *bytes_);
  EXPECT_EQ(all(*split.train), (Ids{'y', '1', '0', '2'}));
}

TEST_F(CorpusTest, HeldOutIsTheEndInWholeSamples) {
  std::string text;
  for (int i = 1; i <= 103; ++i) text.push_back(static_cast<char>(i));
  const std::string file = write("a.txt", text);
  for (const auto& [share, held] : {std::pair{0.1, 2}, {0.29, 5}, {0.05, 1}, {0.95, 19}}) {
    const Split split = open_corpus(options({file}, 5, share), *bytes_);  // 20 samples
    ASSERT_NE(split.held_out, nullptr);
    EXPECT_EQ(split.held_out->size(), held) << share;
    EXPECT_EQ(split.train->size(), 20 - held);
    Ids joined = all(*split.train);
    const Ids end = all(*split.held_out);
    joined.insert(joined.end(), end.begin(), end.end());
    for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(joined[i], static_cast<std::int64_t>(i + 1));
  }
  EXPECT_EQ(message(options({file}, 5, 0.04), *bytes_),
            "ConfigError: data.held_out: 0.04 of 20 samples is not one whole sample; it takes at "
            "least 0.05, or more text, or data.held_out_files");
  EXPECT_NE(message(options({file}, 60, 0.5), *bytes_).find("not one whole sample"),
            std::string::npos);
}

TEST_F(CorpusTest, HeldOutFiles) {
  CorpusOptions given = options({write("a.txt", "aaaa")}, 2);
  given.held_out_files = {write("b.txt", "bbb")};
  const Split split = open_corpus(given, *bytes_);
  EXPECT_EQ(all(*split.train), (Ids{'a', 'a', 'a', 'a'}));
  EXPECT_EQ(all(*split.held_out), (Ids{'b', 'b'}));
  given.held_out_files = {path("./a.txt")};
  EXPECT_NE(message(given, *bytes_).find("in data.files too"), std::string::npos);
  given.held_out_files = {write("c.txt", "c")};
  EXPECT_NE(message(given, *bytes_).find("data.held_out_files: the files hold 1 tokens"),
            std::string::npos);
  given.held_out = 0.5;
  EXPECT_NE(message(given, *bytes_).find("not both"), std::string::npos);
}

TEST_F(CorpusTest, WhatIsNoTextIsRefused) {
  const std::string latin = write("latin.txt", "caf\xE9 au lait");
  EXPECT_NE(message(options({latin}, 1), with_end_).find("latin.txt: byte 3 (0xE9) is not UTF-8"),
            std::string::npos);
  EXPECT_EQ(message(options({latin}, 1), *bytes_), "");
  const std::string binary = write("a.bin", std::string("ab\0c", 4));
  for (const Tokenizer* tokenizer : {bytes_.get(), static_cast<const Tokenizer*>(&with_end_)}) {
    const std::string error = message(options({binary}, 1), *tokenizer);
    EXPECT_TRUE(error.starts_with("DataError: " + binary + ": byte 2 is NUL")) << error;
  }
}

TEST_F(CorpusTest, ErrorsNameTheKey) {
  const std::string file = write("a.txt", "abc");
  const auto starts = [&](const CorpusOptions& given, const std::string& start) {
    EXPECT_EQ(message(given, *bytes_).substr(0, start.size()), start);
  };
  starts(options({}, 1), "ConfigError: data.files: names no file");
  starts(options({path("none.txt")}, 1), "IoError: data.files: '");
  starts(options({path("*.none")}, 1), "ConfigError: data.files: no file matches");
  starts(options({folder_.string()}, 1), "ConfigError: data.files: '");
  starts(options({file}, 0), "ConfigError: data.sequence_length: ");
  starts(options({file}, 4), "ConfigError: data.files: the files hold 3 tokens");
  starts(options({write("e.txt", "")}, 4), "ConfigError: data.files: the files hold 0 tokens");
  starts(options({file}, 1, 1.0), "ConfigError: data.held_out: ");
  starts(options({file}, 1, -0.1), "ConfigError: data.held_out: ");
  starts(options({write_tokens("t.tokens", {{1}}, 256, 5)}, 1),
         "DataError: " + path("t.tokens") + ": tokenizer: ");
  starts(options({write_tokens("v.tokens", {{1}}, 257, 0)}, 1),
         "DataError: " + path("v.tokens") + ": vocabulary: 257");
}

}  // namespace
}  // namespace shardwise::data
