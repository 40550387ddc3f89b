#include "shardwise/comm/watchdog.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "shardwise/base/error.h"

namespace shardwise::comm {
namespace {

using std::chrono::milliseconds;

bool wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 500 && !condition(); ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  return condition();
}

TEST(WatchdogTest, ACollectiveThatNeverFinishesIsReportedOnce) {
  std::atomic<int> timeouts = 0;
  Watchdog watchdog(c10::kCPU, milliseconds(40), [&] { ++timeouts; });
  watchdog.add("all_gather for block 1", [] { return true; });
  watchdog.add("all_gather for block 2", [] { return false; });
  ASSERT_TRUE(wait_until([&] { return timeouts == 1; }));
  try {
    watchdog.check();
    FAIL() << "no error";
  } catch (const CommunicationError& error) {
    EXPECT_NE(std::string(error.what()).find("block 2"), std::string::npos) << error.what();
  }
}

TEST(WatchdogTest, CollectivesThatFinishAreForgotten) {
  std::atomic<bool> done = false;
  std::atomic<int> timeouts = 0;
  Watchdog watchdog(c10::kCPU, milliseconds(300), [&] { ++timeouts; });
  watchdog.add("all_gather for block 1", [&] { return done.load(); });
  done = true;
  std::this_thread::sleep_for(milliseconds(450));
  EXPECT_EQ(timeouts, 0);
  EXPECT_NO_THROW(watchdog.check());
}

}  // namespace
}  // namespace shardwise::comm
