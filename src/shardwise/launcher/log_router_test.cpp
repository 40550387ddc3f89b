#include "shardwise/launcher/log_router.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "shardwise/base/error.h"

namespace shardwise::launcher {
namespace {

// A pipe with a port that writes into it.
class Piped {
 public:
  Piped() { EXPECT_EQ(::pipe2(ends_, O_NONBLOCK), 0); }
  ~Piped() {
    close_reader();
    ::close(ends_[1]);
  }
  int writer() const { return ends_[1]; }
  void close_reader() {
    if (ends_[0] >= 0) ::close(ends_[0]);
    ends_[0] = -1;
  }
  std::string read() {
    std::string text;
    char buffer[4096];
    ssize_t count = 0;
    while ((count = ::read(ends_[0], buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<std::size_t>(count));
    }
    return text;
  }

 private:
  int ends_[2];
};

LogRouter::Options ranks(int count, int first = 0) {
  LogRouter::Options options;
  options.ranks = count;
  options.first_rank = first;
  return options;
}

TEST(LogRouter, PrefixesWholeLinesOfEachStream) {
  Piped out, err;
  OutputPort out_port(out.writer()), err_port(err.writer());
  LogRouter router(ranks(2, 4), out_port, err_port);
  router.bytes(0, Stream::kOut, "ha", 0);
  router.bytes(1, Stream::kOut, "first\nsec", 0);
  router.bytes(0, Stream::kOut, "lf\n", 0);
  router.bytes(1, Stream::kErr, "problem\n", 0);
  router.flush(0);
  EXPECT_EQ(out.read(), "[rank 5] first\n[rank 4] half\n");
  EXPECT_EQ(err.read(), "[rank 5] problem\n");
  router.end(1, Stream::kOut);
  router.note("bye");
  router.flush(0);
  EXPECT_EQ(out.read(), "[rank 5] sec\n");
  EXPECT_EQ(err.read(), "[shardwise] bye\n");
  EXPECT_EQ(router.tail(1).lines(), (std::vector<std::string>{"first", "problem", "sec"}));
}

TEST(LogRouter, ProgressIsThinnedToALineEveryTenSeconds) {
  Piped out, err;
  OutputPort out_port(out.writer()), err_port(err.writer());
  LogRouter router(ranks(1), out_port, err_port);
  for (int second = 1; second <= 25; ++second) {
    router.bytes(0, Stream::kErr, "\rstep " + std::to_string(second), second);
  }
  router.bytes(0, Stream::kErr, "\rdone\n", 26);
  router.flush(26);
  EXPECT_EQ(err.read(), "[rank 0] step 11\n[rank 0] step 21\n[rank 0] done\n");
}

TEST(LogRouter, HiddenRanksStillHaveATail) {
  Piped out, err;
  OutputPort out_port(out.writer()), err_port(err.writer());
  LogRouter::Options options = ranks(2);
  options.console = Console::kFirstRank;
  LogRouter router(options, out_port, err_port);
  router.bytes(0, Stream::kOut, "shown\n", 0);
  router.bytes(1, Stream::kOut, "hidden\n", 0);
  router.flush(0);
  EXPECT_EQ(out.read(), "[rank 0] shown\n");
  EXPECT_EQ(router.tail(1).lines(), std::vector<std::string>{"hidden"});
}

TEST(LogRouter, ALogThatIsAPipeIsNamed) {
  std::string folder = testing::TempDir() + "sw_logs_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string pipe = folder + "/rank_0.log";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Piped out;
  OutputPort port(out.writer());
  auto options = ranks(1);
  options.log_directory = folder;
  try {
    const LogRouter router(options, port, port);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("'" + pipe + "': it is a pipe"), std::string::npos)
        << error.what();
  }
  std::filesystem::remove_all(folder);
}

TEST(OutputPort, FillsUpInsteadOfBlockingAndTellsWhenTheReaderHasGone) {
  ::signal(SIGPIPE, SIG_IGN);
  Piped out, err;
  OutputPort out_port(out.writer()), err_port(err.writer());
  LogRouter router(ranks(1), out_port, err_port);
  const std::string line(1000, 'x');
  int lines = 0;
  while (router.accepts(Stream::kOut) && lines < 100000) {
    router.bytes(0, Stream::kOut, line + "\n", 0);
    router.flush(0);
    ++lines;
  }
  EXPECT_LT(lines, 3000);  // 1 MiB here and what the pipe takes
  EXPECT_TRUE(router.accepts(Stream::kErr));
  std::string text = out.read();
  while (out_port.waiting()) {
    router.flush(0);
    text += out.read();
  }
  EXPECT_EQ(text.size(), static_cast<std::size_t>(lines) * 1010);
  EXPECT_TRUE(router.accepts(Stream::kOut));
  out.close_reader();
  router.bytes(0, Stream::kOut, "lost\n", 0);
  router.flush(0);
  EXPECT_TRUE(out_port.failed());
}

}  // namespace
}  // namespace shardwise::launcher
