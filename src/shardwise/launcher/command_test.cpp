#include "shardwise/launcher/command.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "shardwise/base/error.h"

namespace shardwise::launcher {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class CommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "launcher_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    fs::create_directory(folder_ / "bin");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string file(const std::string& name, bool executable) {
    const fs::path path = folder_ / name;
    std::ofstream(path) << "#!/bin/sh\n";
    fs::permissions(path, executable ? fs::perms::owner_all : fs::perms::owner_read);
    return path.string();
  }
  Command resolve(const LaunchOptions& options) const {
    return resolve_command(options, {{"PATH", "/nowhere:" + (folder_ / "bin").string()}},
                           (folder_ / "venv").string());
  }

  fs::path folder_;
};

TEST_F(CommandTest, ScriptsRunWithThePythonBesideTheProgramFirst) {
  LaunchOptions options;
  options.program = {file("train.py", false), "--lr", "1"};
  const std::string in_path = file("bin/python3", true);
  EXPECT_EQ(resolve(options).arguments, (Words{in_path, "-u", options.program[0], "--lr", "1"}));
  fs::create_directory(folder_ / "venv");
  const std::string beside = file("venv/python3", true);
  EXPECT_EQ(resolve(options).file, beside);
  options.python = file("mine", true);
  EXPECT_EQ(resolve(options).file, options.python);
  options.pass_local_rank = true;
  EXPECT_EQ(rank_arguments(resolve(options), options, 3),
            (Words{options.python, "-u", options.program[0], "--local_rank=3", "--lr", "1"}));
}

TEST_F(CommandTest, ModulesAndNativePrograms) {
  LaunchOptions options;
  options.program = {"pkg.train", "x"};
  options.kind = ProgramKind::kModule;
  const std::string python = file("bin/python3", true);
  EXPECT_EQ(resolve(options).arguments, (Words{python, "-u", "-m", "pkg.train", "x"}));
  options.kind = ProgramKind::kByName;
  options.program[0] = "tool";
  const std::string tool = file("bin/tool", true);
  EXPECT_EQ(resolve(options).file, tool);
  EXPECT_EQ(resolve(options).arguments, (Words{"tool", "x"}));
  options.kind = ProgramKind::kNative;
  options.program[0] = file("run.py", true);
  EXPECT_EQ(resolve(options).file, options.program[0]);
}

TEST_F(CommandTest, WhatCannotBeRunIsAnIoError) {
  LaunchOptions options;
  for (const std::string& program : {std::string("absent"), (folder_ / "absent.py").string(),
                                     folder_.string(), file("not_executable", false)}) {
    options.program = {program};
    EXPECT_THROW(resolve(options), IoError) << program;
  }
  options.program = {file("train.py", false)};  // no python3 anywhere
  EXPECT_THROW(resolve(options), IoError);
}

}  // namespace
}  // namespace shardwise::launcher
