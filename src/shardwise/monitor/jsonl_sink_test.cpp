#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "shardwise/base/error.h"
#include "shardwise/monitor/recorded_run_test.h"

namespace shardwise::monitor {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class JsonlSinkTest : public testing::Test {
 protected:
  JsonlSinkTest() {
    std::string name = (fs::temp_directory_path() / "sw_jsonl_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~JsonlSinkTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name = "log.jsonl") const { return folder_ / name; }
  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  // The lines that have an end; `rest` gets what follows.
  static std::vector<Json> lines(const std::string& path, std::string* rest = nullptr) {
    std::istringstream text(read(path));
    std::vector<Json> all;
    std::string line;
    while (std::getline(text, line)) {
      if (text.eof()) {
        if (rest != nullptr) *rest = line;
        break;
      }
      all.push_back(Json::parse(line));
    }
    return all;
  }

  fs::path folder_;
};

TEST_F(JsonlSinkTest, NumbersReadBackAndOthersAreStrings) {
  StepRecord record = recorded_step(90, 1000);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.lr = 0.1 + 0.2;
  const auto sink = make_jsonl_sink(path());
  sink->begin({"t\n\xff", 7, "{\"a\":\n 1e-3}"});
  sink->step(record);
  sink->evaluation({90, -std::numeric_limits<double>::infinity(), 5});
  sink->note("saved");
  const std::vector<Json> all = lines(path());  // before end(): nothing is held back
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0]["title"], "t\n\xef\xbf\xbd");
  EXPECT_EQ(all[0]["config"], Json::parse("{\"a\": 0.001}"));
  EXPECT_EQ(all[1]["loss"], "NaN");
  EXPECT_EQ(all[1]["lr"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(all[1]["grad_norm"], "Infinity");
  EXPECT_EQ(all[1]["skipped"], true);
  EXPECT_EQ(all[1]["seconds"].get<double>(), record.seconds);
  EXPECT_EQ(all[2]["loss"], "-Infinity");
  EXPECT_EQ(all[3], Json::parse(R"({"kind": "note", "text": "saved"})"));
}

TEST_F(JsonlSinkTest, EarlierRunsAreKept) {
  for (const char* title : {"first", "second", "third"}) {
    const auto sink = make_jsonl_sink(path());
    sink->begin({title, 0, "{}"});
    sink->end("");
  }
  EXPECT_EQ(lines(path("log.1.jsonl"))[0]["title"], "first");
  EXPECT_EQ(lines(path("log.2.jsonl"))[0]["title"], "second");
  EXPECT_EQ(lines(path())[0]["title"], "third");
  EXPECT_EQ(lines(path()).size(), 2U);
}

TEST_F(JsonlSinkTest, NothingHappensBeforeTheRunBegins) {
  std::ofstream(path()) << "old\n";
  make_jsonl_sink(path());
  EXPECT_EQ(read(path()), "old\n");
  EXPECT_FALSE(fs::exists(path("log.1.jsonl")));
}

TEST_F(JsonlSinkTest, MissingFolderIsNamed) {
  for (const auto make : {+[](const std::string& p) { return make_jsonl_sink(p); },
                          +[](const std::string& p) { return make_report_sink(p, 1); }}) {
    try {
      make(path("no/log"));
      FAIL();
    } catch (const IoError& error) {
      EXPECT_NE(std::string(error.what()).find(path("no/log") + ": the folder '" + path("no")),
                std::string::npos)
          << error.what();
    }
  }
}

[[noreturn]] void write_until_killed(const std::string& path) {
  const auto sink = make_jsonl_sink(path);
  sink->begin({"t", 0, "{}"});
  for (std::int64_t step = 1;; ++step) sink->step(recorded_step(step, 1000));
}

TEST_F(JsonlSinkTest, WhatIsNoFileIsNamed) {
  const auto message = [](const std::string& path) -> std::string {
    try {
      make_jsonl_sink(path);
    } catch (const IoError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(message(path("pipe")).find(path("pipe") + ": cannot write the log: it is a pipe"), 0U);
  EXPECT_EQ(message(folder_).find(folder_.string() + ": cannot write the log: it is a folder"), 0U);
  EXPECT_EQ(message("/dev/null"), "nothing was thrown");
}

TEST_F(JsonlSinkTest, APipeThatComesLateDoesNotStopTheTraining) {
  const auto sink = make_jsonl_sink(path());
  EXPECT_EQ(::mkfifo(path().c_str(), 0600), 0);
  testing::internal::CaptureStderr();
  sink->begin({"", 10, "{}"});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find(path() + ": cannot open it"), std::string::npos) << text;
}

TEST_F(JsonlSinkTest, KilledRunsLeaveWholeLines) {
  std::mt19937_64 random(11);
  std::size_t most = 0;
  for (int round = 0; round < 40; ++round) {
    const std::string name = path("log" + std::to_string(round) + ".jsonl");
    const pid_t child = ::fork();
    if (child == 0) write_until_killed(name);
    while (!fs::exists(name) || fs::file_size(name) == 0) ::usleep(100);
    ::usleep(static_cast<useconds_t>(random() % 4000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    std::string rest;
    const std::vector<Json> all = lines(name, &rest);
    for (std::size_t i = 1; i < all.size(); ++i) ASSERT_EQ(all[i]["step"], i);
    // The kernel may have stopped between two pages in the last line.
    ASSERT_LT(rest.size(), 400U);
    most = std::max(most, all.size());
  }
  EXPECT_GT(most, 20U);
}

TEST_F(JsonlSinkTest, FullDiskIsOneWarning) {
  testing::internal::CaptureStderr();
  const auto sink = make_jsonl_sink("/dev/full");
  play_run(*sink, 20);
  sink->end("");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(log,
            "[shardwise] warning: the log of numbers: /dev/full: cannot write: No space left on "
            "device; the training goes on without it\n");
  struct stat status{};
  ASSERT_EQ(::stat("/dev/full", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

// In a child, where files may have 20000 bytes.
TEST_F(JsonlSinkTest, DiskThatBecomesFullLeavesWholeLinesAndOtherSinks) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20000, 20000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::vector<std::unique_ptr<Sink>> sinks;
    sinks.push_back(make_jsonl_sink(path()));
    sinks.push_back(make_report_sink(path("report.html"), 1e9));
    const auto all = make_fan_out(std::move(sinks));
    play_run(*all, 200);
    all->end("");
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::string rest;
  EXPECT_GT(lines(path(), &rest).size(), 50U);
  EXPECT_EQ(rest, "");
  // The report of 200 steps does not fit; the one that begin() wrote stands.
  EXPECT_NE(read(path("report.html")).find("nothing to show yet"), std::string::npos);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

}  // namespace
}  // namespace shardwise::monitor
