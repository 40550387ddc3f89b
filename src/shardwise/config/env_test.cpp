#include "shardwise/config/env.h"

#include <gtest/gtest.h>

#include <map>

#include "shardwise/base/error.h"

namespace shardwise::config {
namespace {

EnvironmentLookup lookup(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

std::string launch_error(std::map<std::string, std::string> variables) {
  try {
    read_launch_environment(lookup(std::move(variables)));
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Environment, WithoutVariablesThereIsOneProcess) {
  const LaunchEnvironment environment = read_launch_environment(lookup({}));
  EXPECT_FALSE(environment.present);
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.master_addr, "127.0.0.1");
  EXPECT_EQ(environment.master_port, 29500);
}

TEST(Environment, ReadsTorchrunsVariables) {
  const LaunchEnvironment environment = read_launch_environment(lookup({{"RANK", "5"},
                                                                        {"LOCAL_RANK", "1"},
                                                                        {"WORLD_SIZE", "8"},
                                                                        {"LOCAL_WORLD_SIZE", "4"},
                                                                        {"MASTER_ADDR", "node0"},
                                                                        {"MASTER_PORT", "1234"}}));
  EXPECT_TRUE(environment.present);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_world_size, 4);
  EXPECT_EQ(describe(environment), "rank 5 of 8 (local 1 of 4), master node0:1234");
}

TEST(Environment, ReadsDeepSpeedsLocalSize) {
  const auto environment = read_launch_environment(
      lookup({{"RANK", "3"}, {"LOCAL_RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_SIZE", "2"}}));
  EXPECT_EQ(environment.local_world_size, 2);
}

TEST(Environment, OneMachineNeedsNoLocalVariables) {
  const auto environment = read_launch_environment(lookup({{"RANK", "3"}, {"WORLD_SIZE", "4"}}));
  EXPECT_EQ(environment.local_rank, 3);
  EXPECT_EQ(environment.local_world_size, 4);
}

TEST(Environment, ErrorsNameTheVariable) {
  EXPECT_TRUE(contains(launch_error({{"RANK", "0"}}), "RANK is set and WORLD_SIZE is not"));
  EXPECT_TRUE(contains(launch_error({{"WORLD_SIZE", "2"}}), "WORLD_SIZE is set and RANK is not"));
  EXPECT_TRUE(contains(launch_error({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), "RANK=4 must be below"));
  EXPECT_TRUE(contains(launch_error({{"RANK", "x"}, {"WORLD_SIZE", "4"}}), "RANK=\"x\""));
  EXPECT_TRUE(contains(launch_error({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE=\"0\""));
  EXPECT_TRUE(contains(launch_error({{"RANK", "1.5"}, {"WORLD_SIZE", "4"}}), "RANK=\"1.5\""));
  EXPECT_TRUE(contains(launch_error({{"RANK", "99999999999999999999"}, {"WORLD_SIZE", "4"}}),
                       "RANK=\"99999999999999999999\""));
  EXPECT_TRUE(contains(launch_error({{"MASTER_PORT", "70000"}}), "MASTER_PORT=\"70000\""));
  EXPECT_TRUE(
      contains(launch_error({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"}}),
               "LOCAL_WORLD_SIZE=4 is larger than WORLD_SIZE=2"));
  EXPECT_TRUE(contains(
      launch_error(
          {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}),
      "LOCAL_RANK=2 must be below LOCAL_WORLD_SIZE=2"));
}

TEST(Environment, Settings) {
  EXPECT_EQ(read_settings(lookup({})).timeout_seconds, 0);
  EXPECT_EQ(read_settings(lookup({{"DEEPSPEED_TIMEOUT", "2.5"}})).timeout_seconds, 150);
  EXPECT_EQ(read_settings(lookup({{"DS_ACCELERATOR", "cpu"}})).accelerator, "cpu");
  EXPECT_THROW(read_settings(lookup({{"DEEPSPEED_TIMEOUT", "soon"}})), ConfigError);
  EXPECT_THROW(read_settings(lookup({{"DEEPSPEED_TIMEOUT", "-1"}})), ConfigError);
  EXPECT_THROW(read_settings(lookup({{"DEEPSPEED_TIMEOUT", "nan"}})), ConfigError);
  EXPECT_THROW(read_settings(lookup({{"DS_ACCELERATOR", "tpu"}})), ConfigError);
}

TEST(Environment, ReadsThisProcess) {
  ASSERT_EQ(::setenv("SHARDWISE_ENV_TEST", "value", 1), 0);
  EXPECT_EQ(environment_variable("SHARDWISE_ENV_TEST"), "value");
  ::unsetenv("SHARDWISE_ENV_TEST");
  EXPECT_FALSE(environment_variable("SHARDWISE_ENV_TEST").has_value());
}

}  // namespace
}  // namespace shardwise::config
