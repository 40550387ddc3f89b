#include "shardwise/launcher/options.h"

#include <gtest/gtest.h>

#include "shardwise/base/error.h"

namespace shardwise::launcher {
namespace {

using Words = std::vector<std::string>;

std::string error_of(const Words& words) {
  try {
    parse_launch_options(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(LaunchOptions, Defaults) {
  const LaunchOptions options = parse_launch_options({"-n", "2", "train.py"});
  EXPECT_EQ(options.ranks, 2);
  EXPECT_EQ(options.nodes, 1);
  EXPECT_EQ(options.node_rank, 0);
  EXPECT_EQ(options.master_address, "127.0.0.1");
  EXPECT_EQ(options.master_port, 0);
  EXPECT_EQ(options.kind, ProgramKind::kByName);
  EXPECT_EQ(options.console, Console::kAllRanks);
  EXPECT_EQ(options.grace_seconds, 5);
  EXPECT_FALSE(options.pass_local_rank);
  EXPECT_EQ(options.program, Words{"train.py"});
}

TEST(LaunchOptions, WordsBehindTheProgramAreItsOwn) {
  const LaunchOptions options =
      parse_launch_options({"-n", "2", "train.py", "-n", "3", "--help", "--", "-m"});
  EXPECT_EQ(options.ranks, 2);
  EXPECT_FALSE(options.help);
  EXPECT_EQ(options.program, (Words{"train.py", "-n", "3", "--help", "--", "-m"}));
  EXPECT_EQ(parse_launch_options({"-n2", "--", "-odd-name"}).program, Words{"-odd-name"});
}

TEST(LaunchOptions, SpellingsOfTorchrunAndDeepSpeed) {
  for (const Words& words :
       {Words{"-n4", "x"}, Words{"--ranks=4", "x"}, Words{"--nproc_per_node", "4", "x"},
        Words{"--nproc-per-node=4", "x"}, Words{"--num_gpus", "4", "x"}}) {
    EXPECT_EQ(parse_launch_options(words).ranks, 4) << words[0];
  }
  const LaunchOptions options =
      parse_launch_options({"--num_gpus=8", "--num_nodes", "3", "--node_rank=2", "--master_addr",
                            "host", "--module", "pkg.train", "--deepspeed"});
  EXPECT_EQ(options.nodes, 3);
  EXPECT_EQ(options.node_rank, 2);
  EXPECT_EQ(options.master_address, "host");
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_EQ(options.kind, ProgramKind::kModule);
  EXPECT_EQ(options.program, (Words{"pkg.train", "--deepspeed"}));
}

TEST(LaunchOptions, LogDirectoryShowsTheFirstRankUnlessTold) {
  EXPECT_EQ(parse_launch_options({"-n", "2", "--log-dir", "d", "x"}).console, Console::kFirstRank);
  EXPECT_EQ(parse_launch_options({"-n", "2", "--console=all", "--log-dir=d", "x"}).console,
            Console::kAllRanks);
  EXPECT_EQ(parse_launch_options({"-n", "2", "--quiet-ranks", "x"}).console, Console::kFirstRank);
  EXPECT_EQ(parse_launch_options({"-n", "2", "--console", "none", "x"}).console, Console::kNobody);
}

TEST(LaunchOptions, ErrorsNameTheOptionTheValueAndTheFix) {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_PRED2(has, error_of({"-n", "0", "x"}), "-n takes a whole number from 1 to 4096, not '0'");
  EXPECT_PRED2(has, error_of({"-n", "2.5", "x"}), "'2.5'");
  EXPECT_PRED2(has, error_of({"-n", "", "x"}), "''");
  EXPECT_PRED2(has, error_of({"-n", "2", "--master_port", "65536", "x"}), "1 to 65535");
  EXPECT_PRED2(has, error_of({"-n", "2", "--grace", "nan", "x"}), "seconds");
  EXPECT_PRED2(has, error_of({"-n", "2", "--grace=-1", "x"}), "'-1'");
  EXPECT_PRED2(has, error_of({"-n", "2", "--console", "some", "x"}), "all, first or none");
  EXPECT_PRED2(has, error_of({"-n", "2", "--module=yes", "x"}), "takes no value, not 'yes'");
  EXPECT_PRED2(has, error_of({"-n", "2", "--master_prt", "1", "x"}), "did you mean --master-port?");
  EXPECT_PRED2(has, error_of({"-n", "2", "--nnodes", "2", "--node-rank", "0", "x"}),
               "--master-addr");
  EXPECT_PRED2(has, error_of({"-n", "2", "--max_restarts", "3", "x"}), "not available");
  EXPECT_PRED2(has, error_of({"x"}), "how many ranks");
  EXPECT_PRED2(has, error_of({}), "how many ranks");
}

TEST(LaunchOptions, HelpListsEveryOption) {
  EXPECT_TRUE(parse_launch_options({"--help"}).help);
  for (const char* name : {"-n", "--nnodes", "--log-dir", "--quiet-ranks", "--grace", "--python"}) {
    EXPECT_NE(launch_help().find(name), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace shardwise::launcher
