#include "shardwise/launcher/exit_report.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "shardwise/launcher/machine.h"
#include "shardwise/launcher/tail.h"

namespace shardwise::launcher {
namespace {

// As the kernel encodes them: the code in the second byte, the signal in the lowest.
constexpr int exited(int code) { return code << 8; }

Failure failure(int rank, int wait_status) {
  Failure result;
  result.rank = rank;
  result.pid = 100 + rank;
  result.wait_status = wait_status;
  result.seconds = 12.34;
  return result;
}

TEST(ExitReport, CodesAndWords) {
  EXPECT_EQ(exit_code_of(exited(0)), 0);
  EXPECT_EQ(exit_code_of(exited(3)), 3);
  EXPECT_EQ(exit_code_of(SIGKILL), 137);
  EXPECT_EQ(describe_end(exited(3)), "exited with code 3");
  EXPECT_EQ(describe_end(SIGKILL), "was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(describe_end(SIGSEGV | 0x80), "was killed by signal 11 (SIGSEGV)");  // with a core dump
}

TEST(ExitReport, TheCauseIsWhatNoOtherRankCanBringAbout) {
  EXPECT_EQ(find_cause({failure(0, exited(1))}), 0U);
  EXPECT_EQ(find_cause({failure(0, exited(1)), failure(1, exited(2))}), 0U);
  EXPECT_EQ(find_cause({failure(0, exited(1)), failure(1, SIGKILL)}), 1U);
  EXPECT_EQ(find_cause({failure(0, exited(75)), failure(1, exited(1))}), 1U);
  EXPECT_EQ(find_cause({failure(0, exited(1)), failure(1, SIGABRT)}), 0U);
  EXPECT_EQ(find_cause({failure(0, SIGABRT), failure(1, exited(1))}), 0U);
  EXPECT_EQ(find_cause({failure(0, SIGTERM), failure(1, SIGABRT), failure(2, SIGSEGV)}), 2U);
}

TEST(ExitReport, SaysWhatHappenedTheLastLinesAndAHint) {
  const auto report = failure_report(failure(2, SIGKILL), {"a", "b"});
  ASSERT_EQ(report.size(), 4U);
  EXPECT_EQ(report[0],
            "rank 2 (pid 102) was killed by signal 9 (SIGKILL) after 12.3 s; last lines it wrote:");
  EXPECT_EQ(report[1], "  | a");
  EXPECT_EQ(report[2], "  | b");
  EXPECT_NE(report[3].find("memory"), std::string::npos);
  EXPECT_EQ(failure_report(failure(0, exited(1)), {}),
            std::vector<std::string>{
                "rank 0 (pid 100) exited with code 1 after 12.3 s; it wrote nothing"});
}

TEST(ExitReport, TailKeepsTheLastLinesPrintable) {
  Tail tail;
  EXPECT_TRUE(tail.lines().empty());
  for (int i = 0; i < 45; ++i) tail.add("line " + std::to_string(i));
  const auto lines = tail.lines();
  ASSERT_EQ(lines.size(), Tail::kLines);
  EXPECT_EQ(lines.front(), "line 25");
  EXPECT_EQ(lines.back(), "line 44");
  tail.add("\x1b[1mü\t\x7f");
  EXPECT_EQ(tail.lines().back(), "?[1mü\t?");
  tail.add(std::string(10000, 'x'));
  EXPECT_EQ(tail.lines().back().size(), Tail::kLineBytes);
}

TEST(Machine, CpuQuotaInWholeCores) {
  EXPECT_EQ(quota_cores("200000 100000"), 2);
  EXPECT_EQ(quota_cores("150000 100000"), 2);
  EXPECT_EQ(quota_cores("50000 100000"), 1);
  EXPECT_EQ(quota_cores("max 100000"), 0);
  EXPECT_EQ(quota_cores(""), 0);
  EXPECT_GE(usable_cores(), 1);
}

}  // namespace
}  // namespace shardwise::launcher
