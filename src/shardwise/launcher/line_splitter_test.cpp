#include "shardwise/launcher/line_splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace shardwise::launcher {
namespace {

struct Collector {
  LineSplitter splitter;
  std::vector<std::string> lines;
  void feed(std::string_view bytes) {
    splitter.feed(bytes, [&](std::string_view line) { lines.emplace_back(line); });
  }
  void finish() {
    splitter.finish([&](std::string_view line) { lines.emplace_back(line); });
  }
};

using Lines = std::vector<std::string>;

TEST(LineSplitter, VisibleTextIsWhatATerminalShows) {
  EXPECT_EQ(visible_text("plain"), "plain");
  EXPECT_EQ(visible_text("10%\r20%"), "20%");
  EXPECT_EQ(visible_text("10%\r20%\r"), "20%");
  EXPECT_EQ(visible_text("\r20%"), "20%");
  EXPECT_EQ(visible_text("\r\r"), "");
  EXPECT_EQ(visible_text(""), "");
}

TEST(LineSplitter, EveryWayOfCuttingTheBytesGivesTheSameLines) {
  const std::string bytes = "one\n\ntwo\r\nol\rnew\n" + std::string(1, '\0') + "bin\nlast";
  const Lines expected = {"one", "", "two", "new", std::string("\0bin", 4), "last"};
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    Collector collector;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      collector.feed(std::string_view(bytes).substr(at, piece));
    }
    collector.finish();
    EXPECT_EQ(collector.lines, expected) << "pieces of " << piece;
  }
}

TEST(LineSplitter, UnfinishedLineAndProgress) {
  Collector collector;
  collector.feed("prompt> ");
  EXPECT_EQ(collector.splitter.unfinished(), "prompt> ");
  EXPECT_FALSE(collector.splitter.overwriting());
  collector.feed("\r 10%");
  EXPECT_EQ(collector.splitter.unfinished(), " 10%");
  EXPECT_TRUE(collector.splitter.overwriting());
  collector.feed("\r");  // until more comes the old text stays
  EXPECT_EQ(collector.splitter.unfinished(), " 10%");
  collector.feed("\r 20%\r");
  EXPECT_EQ(collector.splitter.unfinished(), " 20%");
  EXPECT_TRUE(collector.lines.empty());
  collector.feed("\n");
  EXPECT_EQ(collector.lines, Lines{" 20%"});
  EXPECT_EQ(collector.splitter.unfinished(), "");
  EXPECT_FALSE(collector.splitter.overwriting());
  collector.finish();
  EXPECT_EQ(collector.lines.size(), 1U);
}

TEST(LineSplitter, LongLinesAreCutAndNothingIsLost) {
  const std::size_t limit = LineSplitter::kMaxLine;
  for (const std::size_t size : {limit - 1, limit, limit + 1, 2 * limit, 2 * limit + 5}) {
    Collector collector;
    const std::string line(size, 'x');
    for (std::size_t at = 0; at < size; at += 1000) {
      collector.feed(std::string_view(line).substr(at, 1000));
      EXPECT_LE(collector.splitter.unfinished().size(), limit);
    }
    collector.feed("\nnext\n");
    ASSERT_EQ(collector.lines.size(), (size + limit - 1) / limit + 1) << size;
    std::string joined;
    for (std::size_t i = 0; i + 1 < collector.lines.size(); ++i) joined += collector.lines[i];
    EXPECT_EQ(joined, line);
    EXPECT_EQ(collector.lines.back(), "next");
  }
}

TEST(LineSplitter, EndlessProgressStaysSmall) {
  Collector collector;
  for (int i = 0; i < 100000; ++i) collector.feed("\r" + std::to_string(i) + "%");
  EXPECT_TRUE(collector.lines.empty());
  EXPECT_EQ(collector.splitter.unfinished(), "99999%");
}

}  // namespace
}  // namespace shardwise::launcher
