#include "shardwise/monitor/console_sink.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "shardwise/monitor/progress_line.h"
#include "shardwise/monitor/recorded_run_test.h"

namespace shardwise::monitor {
namespace {

std::string read_all(int descriptor) {
  std::string all;
  for (pollfd ready{descriptor, POLLIN, 0}; ::poll(&ready, 1, 50) == 1;) {
    char bytes[4096];
    const ssize_t count = ::read(descriptor, bytes, sizeof(bytes));
    if (count <= 0) break;
    all.append(bytes, static_cast<std::size_t>(count));
  }
  return all;
}

// What a terminal shows: carriage return, line feed, erase to the end of the line.
std::vector<std::string> screen_after(const std::string& bytes) {
  std::vector<std::string> lines(1);
  std::size_t column = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\r') {
      column = 0;
    } else if (bytes[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else if (bytes.compare(i, 3, "\x1b[K") == 0) {
      lines.back().resize(std::min(column, lines.back().size()));
      i += 2;
    } else {
      lines.back().resize(std::max(lines.back().size(), column + 1), ' ');
      lines.back()[column++] = bytes[i];
    }
  }
  return lines;
}

class Terminal {
 public:
  Terminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    ::grantpt(master_);
    ::unlockpt(master_);
    slave_ = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
    resize(100);
  }
  ~Terminal() {
    ::close(slave_);
    ::close(master_);
  }
  void resize(unsigned short columns) {
    const winsize size{24, columns, 0, 0};
    ::ioctl(master_, TIOCSWINSZ, &size);
  }
  int slave() const { return slave_; }
  std::string bytes() const { return read_all(master_); }

 private:
  int master_, slave_ = -1;
};

class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  int in() const { return ends_[1]; }
  std::string bytes() const { return read_all(ends_[0]); }

 private:
  int ends_[2];
};

class ConsoleSinkTest : public testing::Test {
 protected:
  std::unique_ptr<Sink> sink(int descriptor, bool terminal) {
    return make_console_sink(ConsoleOptions{descriptor, terminal, [this] { return now_; }});
  }
  static StepRecord record(std::int64_t step) {
    StepRecord record;
    record.step = step;
    record.loss = 2.345;
    record.lr = 3e-4;
    record.grad_norm = 0.91;
    record.tokens_per_second = 12345;
    record.seconds = static_cast<double>(step) * 2;
    return record;
  }

  double now_ = 100;
};

TEST_F(ConsoleSinkTest, BarIsWrittenOverBelowOtherLines) {
  const Terminal terminal;
  const auto console = sink(terminal.slave(), true);
  console->begin({"a run", 500, ""});
  console->step(record(100));
  now_ += 1;
  console->step(record(120));
  console->evaluation({120, 1.5, 4096});
  console->sample(120, "Once ", "upon\na \x1b[2Jtime");
  console->note("saved");
  EXPECT_EQ(screen_after(terminal.bytes()),
            (std::vector<std::string>{
                "a run", "step 120  held-out loss 1.500  (4.10k tokens)", "step 120  sample",
                "  | Once upon", "  | a \xef\xbf\xbd[2Jtime", "saved",
                // 99 columns: what the numbers leave is the bar's. 380 steps of 2 seconds are left.
                "step 120/500  [=====>                ]  loss 2.345  lr 3.0e-04  norm 0.910  "
                "12.3k tok/s  eta 12m40s"}));
}

TEST_F(ConsoleSinkTest, EndLeavesTheLastStateAndAFreeLine) {
  const Terminal terminal;
  {
    const auto console = sink(terminal.slave(), true);
    console->begin({"", 0, ""});
    console->step(record(1));
    console->step(record(2));  // too early to be drawn
    console->end("IoError: disk full\nmore");
  }
  EXPECT_EQ(screen_after(terminal.bytes()),
            (std::vector<std::string>{"step 2  loss 2.345  lr 3.0e-04  norm 0.910  12.3k tok/s",
                                      "failed after step 2: IoError: disk full", ""}));
}

TEST_F(ConsoleSinkTest, ASinkThatIsDroppedLeavesAFreeLine) {
  const Terminal terminal;
  sink(terminal.slave(), true)->step(record(1));
  EXPECT_EQ(screen_after(terminal.bytes()).back(), "");
  sink(terminal.slave(), true)->begin({"", 5, ""});
  EXPECT_EQ(terminal.bytes(), "");
}

TEST_F(ConsoleSinkTest, BarFollowsTheWidth) {
  Terminal terminal;
  const auto console = sink(terminal.slave(), true);
  console->begin({"", 500, ""});
  for (const int columns : {300, 100, 80, 60, 40, 20, 12, 5, 2, 1, 90}) {
    terminal.resize(static_cast<unsigned short>(columns));
    now_ += 1;
    console->step(record(columns));
    const std::string shown = screen_after(terminal.bytes()).back();
    EXPECT_LE(shown.size(), static_cast<std::size_t>(std::max(columns - 1, 1))) << shown;
    EXPECT_EQ(shown.substr(0, 4), std::string("step").substr(0, shown.size()));
  }
}

TEST_F(ConsoleSinkTest, AtMostTenDrawingsASecondButAlwaysTheLastStep) {
  const Terminal terminal;
  const auto console = sink(terminal.slave(), true);
  console->begin({"", 2000, ""});
  std::string bytes;
  for (std::int64_t step = 1; step <= 2000; ++step) {
    console->step(record(step));
    now_ += 0.001;
    if (step % 100 == 0) bytes += terminal.bytes();
  }
  const auto drawings = std::count(bytes.begin(), bytes.end(), '\r');
  EXPECT_GE(drawings, 19);
  EXPECT_LE(drawings, 22);
  EXPECT_EQ(screen_after(bytes).back().substr(0, 14), "step 2000/2000");
}

TEST_F(ConsoleSinkTest, ElsewhereLinesForFirstAndLastStepAndEveryFiveSeconds) {
  const Pipe pipe;
  const auto console = sink(pipe.in(), false);
  console->begin({"a run", 30, ""});
  for (std::int64_t step = 1; step <= 30; ++step) {
    console->step(record(step));
    now_ += 0.5;
  }
  console->end("");
  const std::string bytes = pipe.bytes();
  EXPECT_EQ(bytes.find_first_of("\r\x1b"), std::string::npos);
  const std::vector<std::string> lines = screen_after(bytes);
  ASSERT_EQ(lines.size(), 6U) << bytes;
  EXPECT_EQ(lines[1], "step 1/30  loss 2.345  lr 3.0e-04  norm 0.910  12.3k tok/s");
  EXPECT_EQ(lines[2].substr(0, 12), "step 11/30  ");
  EXPECT_EQ(lines[3].substr(0, 12), "step 21/30  ");
  EXPECT_EQ(lines[4], "step 30/30  loss 2.345  lr 3.0e-04  norm 0.910  12.3k tok/s  eta 0s");
  EXPECT_EQ(lines[5], "");
}

TEST_F(ConsoleSinkTest, LastStepIsShownWhenTheRunEndsEarly) {
  const Pipe pipe;
  const auto console = sink(pipe.in(), false);
  console->begin({"", 30, ""});
  for (std::int64_t step = 1; step <= 7; ++step) console->step(record(step));
  console->end("");
  const std::vector<std::string> lines = screen_after(pipe.bytes());
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1].substr(0, 9), "step 7/30");
}

TEST_F(ConsoleSinkTest, SkippedStepsAndNumbersThatAreNone) {
  StepRecord skipped = record(5);
  skipped.skipped = true;
  skipped.loss = std::numeric_limits<double>::quiet_NaN();
  skipped.grad_norm = std::numeric_limits<double>::infinity();
  skipped.loss_scale = 65536;
  EXPECT_EQ(plain_line({skipped, 0, 3, -1}),
            "step 5  loss NaN  lr 3.0e-04  norm inf  scale 65.5k  12.3k tok/s  skipped (3 so far)");
  EXPECT_EQ(plain_line({record(6), 0, 3, -1}),
            "step 6  loss 2.345  lr 3.0e-04  norm 0.910  12.3k tok/s  3 skipped");
}

TEST_F(ConsoleSinkTest, BarIsEmptyAtFirstAndFullAtLast) {
  EXPECT_EQ(bar_line({record(0), 500, 0, -1}, 30), "step 0/500  loss 2.345");
  EXPECT_NE(bar_line({record(0), 500, 0, -1}, 90).find("[>     "), std::string::npos);
  EXPECT_NE(bar_line({record(500), 500, 0, 0}, 90).find("=]"), std::string::npos);
  EXPECT_NE(bar_line({record(501), 500, 0, -1}, 90).find("=]"), std::string::npos);
}

// The public function, with the terminal's name in the environment.
TEST_F(ConsoleSinkTest, DumbTerminalsGetLines) {
  const char* old = ::getenv("TERM");
  const std::string kept = old == nullptr ? "" : old;
  const Terminal terminal;
  for (const char* kind : {"dumb", "", "xterm"}) {
    ::setenv("TERM", kind, 1);
    const auto console = make_console_sink(terminal.slave());
    console->begin({"", 10, ""});
    console->step(record(1));
    const std::string bytes = terminal.bytes();
    const bool bar = bytes.find("\x1b[K") != std::string::npos;
    EXPECT_EQ(bar, std::string(kind) == "xterm") << bytes;
  }
  old == nullptr ? ::unsetenv("TERM") : ::setenv("TERM", kept.c_str(), 1);
}

TEST_F(ConsoleSinkTest, FullDiskIsOneWarning) {
  const int full = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  testing::internal::CaptureStderr();
  const auto console = sink(full, false);
  play_run(*console, 20);
  console->end("");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "[shardwise] warning: the console: progress: cannot write: No space left on device; "
            "the training goes on without it\n");
  ::close(full);
}

}  // namespace
}  // namespace shardwise::monitor
