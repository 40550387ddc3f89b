#include "shardwise/data/token_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "shardwise/base/error.h"

namespace shardwise::data {
namespace {

// Sample s holds the tokens s * length, s * length + 1, ...
class CountingCorpus : public Corpus {
 public:
  CountingCorpus(std::int64_t size, std::int64_t length) : size_(size), length_(length) {}
  std::int64_t size() const override { return size_; }
  std::int64_t length() const override { return length_; }
  std::int64_t vocabulary() const override { return size_ * length_; }
  void read(std::int64_t sample, std::span<std::int64_t> out) const override {
    for (std::int64_t i = 0; i < length_; ++i) {
      out[static_cast<std::size_t>(i)] = sample * length_ + i;
    }
  }

 private:
  std::int64_t size_, length_;
};

using Samples = std::vector<std::int64_t>;

LoaderOptions options(int rank, int ranks, std::int64_t micro_batch, bool shuffle = true) {
  LoaderOptions made;
  made.micro_batch = micro_batch;
  made.rank = rank;
  made.world_size = ranks;
  made.seed = 42;
  made.shuffle = shuffle;
  return made;
}

// All ranks' loaders, stepped together.
class Ranks {
 public:
  Ranks(std::shared_ptr<const Corpus> corpus, int ranks, std::int64_t micro_batch, bool shuffle)
      : length_(corpus->length()) {
    for (int rank = 0; rank < ranks; ++rank) {
      loaders_.emplace_back(corpus, options(rank, ranks, micro_batch, shuffle));
    }
  }

  void seek(const Cursor& cursor) {
    for (TokenLoader& loader : loaders_) loader.seek(cursor);
  }

  Cursor cursor() const { return loaders_.front().cursor(); }

  // Takes a global micro-batch and gives its samples in rank order.
  Samples next() {
    Samples samples;
    for (TokenLoader& loader : loaders_) {
      std::vector<std::int64_t> tokens(static_cast<std::size_t>(loader.tokens_per_batch()));
      loader.next(tokens);
      for (std::size_t at = 0; at < tokens.size(); at += static_cast<std::size_t>(length_)) {
        samples.push_back(tokens[at] / length_);
        for (std::int64_t i = 0; i < length_; ++i) {
          EXPECT_EQ(tokens[at + static_cast<std::size_t>(i)], samples.back() * length_ + i);
        }
      }
      EXPECT_EQ(loader.cursor(), loaders_.front().cursor());
    }
    return samples;
  }

 private:
  std::int64_t length_;
  std::vector<TokenLoader> loaders_;
};

void append(Samples& to, const Samples& from) { to.insert(to.end(), from.begin(), from.end()); }

std::shared_ptr<const Corpus> corpus(std::int64_t size) {
  return std::make_shared<CountingCorpus>(size, 3);
}

Samples one_rank(std::int64_t size, std::int64_t count, bool shuffle) {
  Ranks ranks(corpus(size), 1, 1, shuffle);
  Samples samples;
  while (static_cast<std::int64_t>(samples.size()) < count) {
    append(samples, ranks.next());
  }
  return samples;
}

TEST(TokenLoader, AnEpochHoldsEverySampleOnce) {
  const Samples samples = one_rank(101, 303, true);
  for (int epoch = 0; epoch < 3; ++epoch) {
    Samples part(samples.begin() + epoch * 101, samples.begin() + (epoch + 1) * 101);
    EXPECT_FALSE(std::is_sorted(part.begin(), part.end()));
    std::sort(part.begin(), part.end());
    for (std::int64_t i = 0; i < 101; ++i) {
      EXPECT_EQ(part[static_cast<std::size_t>(i)], i);
    }
  }
  EXPECT_NE(Samples(samples.begin(), samples.begin() + 101),
            Samples(samples.begin() + 101, samples.begin() + 202));
}

TEST(TokenLoader, WithoutShufflingInOrder) {
  EXPECT_EQ(one_rank(4, 9, false), (Samples{0, 1, 2, 3, 0, 1, 2, 3, 0}));
}

// 240 samples: every global micro-batch divides them, so that epochs end in the same place too.
TEST(TokenLoader, AnyNumberOfRanksSeesTheSameSequence) {
  for (const bool shuffle : {true, false}) {
    const Samples expected = one_rank(240, 600, shuffle);
    for (int count = 1; count <= 4; ++count) {
      for (const std::int64_t micro_batch : {1, 2, 5}) {
        Ranks ranks(corpus(240), count, micro_batch, shuffle);
        Samples samples;
        while (samples.size() < expected.size()) append(samples, ranks.next());
        samples.resize(expected.size());
        EXPECT_EQ(samples, expected) << count << " ranks, micro-batch " << micro_batch;
      }
    }
  }
}

TEST(TokenLoader, TheNumberOfRanksMayChangeAnywhere) {
  const std::int64_t size = 997;
  const Samples expected = one_rank(size, size, true);
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 50; ++trial) {
    Samples samples;
    Cursor cursor{0, 0, 42};
    // Stays in one epoch: its end depends on the number of ranks.
    while (samples.size() < 800) {
      Ranks ranks(corpus(size), 1 + static_cast<int>(random() % 4),
                  1 + static_cast<std::int64_t>(random() % 3), true);
      ranks.seek(parse_cursor(to_string(cursor)));
      for (std::uint64_t steps = 1 + random() % 8; steps > 0; --steps) {
        append(samples, ranks.next());
      }
      cursor = ranks.cursor();
      EXPECT_EQ(cursor.position, static_cast<std::int64_t>(samples.size()));
    }
    EXPECT_TRUE(std::equal(samples.begin(), samples.end(), expected.begin()));
  }
}

TEST(TokenLoader, TheCursorSaysTheOrder) {
  Ranks first(corpus(50), 1, 1, true);
  for (int i = 0; i < 60; ++i) first.next();
  EXPECT_EQ(to_string(first.cursor()), "epoch=1 position=10 seed=42");
  LoaderOptions other = options(0, 1, 1);
  other.seed = 1;
  TokenLoader loader(corpus(50), other);
  loader.seek(first.cursor());
  std::vector<std::int64_t> tokens(3);
  loader.next(tokens);
  EXPECT_EQ(tokens[0] / 3, first.next()[0]);
}

TEST(TokenLoader, WhatDoesNotFillAGlobalBatchIsLeftOut) {
  Ranks ranks(corpus(7), 2, 1, false);
  Samples samples;
  for (int i = 0; i < 6; ++i) append(samples, ranks.next());
  EXPECT_EQ(samples, (Samples{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
  ranks.seek({0, 7, 0});
  EXPECT_EQ(ranks.next(), (Samples{0, 1}));
  EXPECT_EQ(ranks.cursor(), (Cursor{1, 2, 0}));
}

TEST(TokenLoader, Refuses) {
  EXPECT_THROW(TokenLoader(corpus(3), options(0, 4, 1)), ConfigError);
  EXPECT_THROW(TokenLoader(corpus(3), options(0, 2, std::int64_t{1} << 62)), ConfigError);
  EXPECT_THROW(TokenLoader(corpus(3), options(2, 2, 1)), UsageError);
  EXPECT_THROW(TokenLoader(corpus(3), options(0, 1, 0)), UsageError);
  TokenLoader loader(corpus(4), options(0, 1, 2));
  EXPECT_THROW(loader.seek({-1, 0, 0}), UsageError);
  EXPECT_THROW(loader.seek({0, 5, 0}), UsageError);
  EXPECT_THROW(loader.seek({0, -1, 0}), UsageError);
  std::vector<std::int64_t> tokens(5);
  EXPECT_THROW(loader.next(tokens), UsageError);
}

TEST(Cursor, Text) {
  const Cursor cursor{3, 4096, ~0ULL};
  EXPECT_EQ(to_string(cursor), "epoch=3 position=4096 seed=18446744073709551615");
  EXPECT_EQ(parse_cursor(to_string(cursor)), cursor);
  for (const char* text :
       {"", "epoch=1", "epoch=1 position=2", "epoch=1 position=2 seed=3 ",
        "epoch=1position=2 seed=3", "epoch= position=2 seed=3", "epoch=1 position=2 seed=-3",
        "position=2 epoch=1 seed=3", "epoch=99999999999999999999 position=2 seed=3",
        "epoch=01 position=2 seed=3"}) {
    EXPECT_THROW(parse_cursor(text), UsageError) << text;
  }
}

}  // namespace
}  // namespace shardwise::data
