#include "shardwise/launcher/environment.h"

#include <gtest/gtest.h>

namespace shardwise::launcher {
namespace {

TEST(LaunchEnvironment, BlocksAreReadAndWritten) {
  const char* const block[] = {"B=2=3", "A=", "odd", "=x", "B=later", nullptr};
  const Environment environment = parse_environment(block);
  EXPECT_EQ(environment, (Environment{{"A", ""}, {"B", "2=3"}}));
  EXPECT_EQ(environment_strings(environment), (std::vector<std::string>{"A=", "B=2=3"}));
  EXPECT_EQ(lookup(environment, "A", "empty"), "empty");
  EXPECT_EQ(lookup(environment, "B"), "2=3");
  EXPECT_TRUE(parse_environment(nullptr).empty());
}

TEST(LaunchEnvironment, RanksOfTheSecondMachineFollowThoseOfTheFirst) {
  LaunchOptions options;
  options.ranks = 3;
  options.nodes = 2;
  options.node_rank = 1;
  options.master_address = "host";
  options.master_port = 1234;
  const Environment environment = rank_environment({{"RANK", "77"}, {"PATH", "/bin"}}, options, 2);
  EXPECT_EQ(environment.at("RANK"), "5");
  EXPECT_EQ(environment.at("LOCAL_RANK"), "2");
  EXPECT_EQ(environment.at("WORLD_SIZE"), "6");
  EXPECT_EQ(environment.at("LOCAL_WORLD_SIZE"), "3");
  EXPECT_EQ(environment.at("GROUP_RANK"), "1");
  EXPECT_EQ(environment.at("CROSS_SIZE"), "2");
  EXPECT_EQ(environment.at("MASTER_ADDR"), "host");
  EXPECT_EQ(environment.at("MASTER_PORT"), "1234");
  EXPECT_EQ(environment.at("PATH"), "/bin");
}

}  // namespace
}  // namespace shardwise::launcher
