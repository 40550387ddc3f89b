#include <gtest/gtest.h>
#include <malloc.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "shardwise/base/error.h"
#include "shardwise/monitor/recorded_run_test.h"
#include "shardwise/monitor/report_page.h"

namespace shardwise::monitor {
namespace {

namespace fs = std::filesystem;

class ReportSinkTest : public testing::Test {
 protected:
  ReportSinkTest() {
    std::string name = (fs::temp_directory_path() / "sw_report_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ / "report.html";
  }
  ~ReportSinkTest() override { fs::remove_all(folder_); }

  std::string read() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  bool shows(const std::string& text) const { return read().find(text) != std::string::npos; }

  fs::path folder_;
  std::string path_;
};

TEST_F(ReportSinkTest, IsWrittenAtBeginWhenDueAndAtEnd) {
  const auto seldom = make_report_sink(path_, 1e9);
  seldom->begin({"a <title>", 10, "{}"});
  EXPECT_TRUE(shows("<h1>a &lt;title&gt;</h1>"));
  EXPECT_TRUE(shows("<b>running</b>"));
  seldom->step(recorded_step(1, 10));
  EXPECT_TRUE(shows("no step yet"));
  seldom->end("IoError: <x>");
  EXPECT_FALSE(shows("no step yet"));
  EXPECT_TRUE(shows("<b>failed</b>"));
  EXPECT_TRUE(shows("IoError: &lt;x&gt;"));
  const auto often = make_report_sink(path_, 0);
  often->begin({"", 10, "{}"});
  often->step(recorded_step(7, 10));
  EXPECT_TRUE(shows("<p class=\"value\">7</p>"));
}

// Allocated by this process; 0 under sanitizers, which have another allocator.
std::size_t allocated_bytes() { return ::mallinfo2().uordblks; }

TEST_F(ReportSinkTest, AMillionStepsStaySmall) {
  const std::size_t before = allocated_bytes();
  RunHistory history;
  history.begin({"long", 1'000'000, std::string(1 << 20, '"')});
  for (std::int64_t step = 1; step <= 1'000'000; ++step) {
    history.add(recorded_step(step, 1'000'000));
    if (step % 1000 == 0) {
      history.add(EvaluationRecord{step, 2, 10});
      history.add({step, std::string(1 << 16, '"'), std::string(1 << 16, '"')});
    }
  }
  EXPECT_LT(allocated_bytes() - before, std::size_t{2} << 20);
  EXPECT_LT(report_page(history, "now", 10).size(), std::size_t{1'000'000});
}

TEST_F(ReportSinkTest, AVanishedFolderIsOneWarning) {
  const auto sink = make_report_sink(path_, 0);
  sink->begin({"t", 20, "{}"});
  fs::remove_all(folder_);
  testing::internal::CaptureStderr();
  for (std::int64_t step = 1; step <= 20; ++step) sink->step(recorded_step(step, 20));
  sink->end("");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_NE(log.find("warning: the report: " + path_), std::string::npos) << log;
}

TEST_F(ReportSinkTest, AFolderInItsPlaceIsNamedBeforeTheRun) {
  fs::create_directory(path_);
  try {
    make_report_sink(path_, 0);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_EQ(std::string(error.what()).find(path_ + ": cannot write: it is a folder"), 0U)
        << error.what();
  }
}

TEST_F(ReportSinkTest, RunsWithoutAnyFiniteNumberHaveAPage) {
  const auto sink = make_report_sink(path_, 1e9);
  sink->begin({"", 0, ""});
  StepRecord record;
  record.loss = record.lr = record.grad_norm = record.tokens_per_second = record.seconds =
      std::numeric_limits<double>::quiet_NaN();
  for (record.step = 1; record.step < 100; ++record.step) sink->step(record);
  sink->evaluation({99, std::numeric_limits<double>::infinity(), 1});
  sink->end("");
  EXPECT_TRUE(shows("<p class=\"value\">NaN</p>"));
  EXPECT_TRUE(shows("nothing to show yet"));
}

// Writes the files of a run into the folder $SW_MONITOR_SAMPLE, for tests/test_monitor.py.
TEST(MonitorSample, Write) {
  const char* folder = std::getenv("SW_MONITOR_SAMPLE");
  if (folder == nullptr) GTEST_SKIP() << "SW_MONITOR_SAMPLE is not set";
  for (const std::int64_t steps : {10, 500, 20000}) {
    const std::string name = std::string(folder) + "/" + std::to_string(steps);
    std::vector<std::unique_ptr<Sink>> sinks;
    sinks.push_back(make_jsonl_sink(name + ".jsonl"));
    sinks.push_back(make_report_sink(name + ".html", steps == 20000 ? 0.1 : 60));
    const std::unique_ptr<Sink> all = make_fan_out(std::move(sinks));
    play_run(*all, steps);
    if (steps != 20000) all->end(steps == 10 ? "CommunicationError: rank 1 <died>" : "");
  }
}

}  // namespace
}  // namespace shardwise::monitor
