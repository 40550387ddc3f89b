#include "shardwise/io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <vector>

#include "shardwise/io/failure.h"
#include "shardwise/io/temporary_folder.h"

namespace shardwise::io {
namespace {

using Names = std::set<std::string>;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(AtomicFile, AppearsWithCommit) {
  const TemporaryFolder folder;
  folder.put("a", "old");
  {
    AtomicFile file(folder.path("a"));
    file.write("new ");
    file.write(bytes_of("content"));
    EXPECT_EQ(folder.get("a"), "old");
    file.commit();
    EXPECT_EQ(folder.get("a"), "new content");
  }
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(AtomicFile, NothingIsLeftWithoutCommit) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder.path("a"));
    file.write("x");
    file.sync();
    EXPECT_EQ(folder.names().size(), 1U);
    EXPECT_FALSE(folder.names().contains("a"));
  }
  EXPECT_EQ(folder.names(), Names{});
}

TEST(AtomicFile, LargeAndSmallWritesKeepTheirOrder) {
  const TemporaryFolder folder;
  std::string expected;
  AtomicFile file(folder.path("a"));
  for (const std::size_t size :
       {1UL, 262'143UL, 1UL, 262'144UL, 5UL, 1'000'000UL, 0UL, 262'140UL}) {
    const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    file.write(piece);
    expected += piece;
  }
  file.overwrite(3, bytes_of("ABC"));
  expected.replace(3, 3, "ABC");
  file.write("end");
  file.commit();
  EXPECT_TRUE(folder.get("a") == expected + "end");
}

TEST(AtomicFile, TwoWritersOfOneFileDoNotMix) {
  const TemporaryFolder folder;
  AtomicFile first(folder.path("a"));
  AtomicFile second(folder.path("a"));
  first.write("first");
  second.write("second");
  first.commit();
  EXPECT_EQ(folder.get("a"), "first");
  second.commit();
  EXPECT_EQ(folder.get("a"), "second");
}

TEST(AtomicFile, PermissionsFollowTheUmask) {
  const TemporaryFolder folder;
  const mode_t old = ::umask(027);
  AtomicFile(folder.path("a")).commit();
  ::umask(old);
  struct stat status{};
  ASSERT_EQ(::stat(folder.path("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
}

TEST(AtomicFile, WhatCannotBeWritten) {
  const TemporaryFolder folder;
  const auto message = [](const std::string& path) {
    return failure<IoError>([&] { AtomicFile{path}; });
  };
  EXPECT_TRUE(contains(message(folder.path("absent/a")), folder.path("absent/a") + ": cannot"));
  EXPECT_TRUE(contains(message(folder.path()), "folder"));
  // A rename would put a file in the place of the device.
  EXPECT_TRUE(contains(message("/dev/null"), "device"));
  EXPECT_TRUE(contains(message(""), "empty"));
  EXPECT_EQ(folder.names(), Names{});
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(
      contains(message(folder.path("pipe")), folder.path("pipe") + ": cannot write: it is a pipe"));
}

TEST(AtomicFile, MisuseIsABug) {
  const TemporaryFolder folder;
  AtomicFile file(folder.path("a"));
  file.write("1234");
  EXPECT_THROW(file.overwrite(2, bytes_of("abc")), InternalError);
  EXPECT_THROW(file.overwrite(-1, bytes_of("a")), InternalError);
  file.commit();
  EXPECT_THROW(file.write("x"), InternalError);
  EXPECT_THROW(file.commit(), InternalError);
}

// What a full disk does: the system takes some bytes and then refuses.
template <typename Write>
int in_process_with_small_files(Write write) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    int status = 1;
    try {
      if (::setrlimit(RLIMIT_FSIZE, &limit) == 0) {
        write();
      }
      status = 2;
    } catch (const IoError& error) {
      status = contains(error.what(), "cannot write: File too large") ? 0 : 3;
    } catch (...) {
      status = 4;
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(AtomicFile, AFullDiskLeavesTheOldFileOnly) {
  const TemporaryFolder folder;
  folder.put("a", "old");
  for (const std::size_t piece : {1'000UL, 1'000'000UL}) {
    EXPECT_EQ(in_process_with_small_files([&] {
                AtomicFile file(folder.path("a"));
                for (std::size_t done = 0; done < 1'000'000; done += piece) {
                  file.write(std::string(piece, 'x'));
                }
                file.commit();
              }),
              0);
    EXPECT_EQ(folder.get("a"), "old");
    EXPECT_EQ(folder.names(), Names{"a"});
  }
}

TEST(ReadText, WholeFilesUpToALimit) {
  const TemporaryFolder folder;
  for (const std::size_t size : {0UL, 1UL, 65'536UL, 65'537UL, 300'000UL}) {
    const std::string content(size, 'x');
    const std::string path = folder.put("a", content);
    EXPECT_TRUE(read_text(path, size) == content);
    EXPECT_TRUE(read_text(path, SIZE_MAX) == content);
    if (size > 0) {
      EXPECT_TRUE(contains(failure<DataError>([&] { read_text(path, size - 1); }), path));
    }
  }
  // A file whose size the system does not know.
  EXPECT_TRUE(contains(read_text("/proc/self/status", 1'000'000), "Pid:"));
  failure<IoError>([&] { read_text(folder.path("absent"), 1); });
  failure<IoError>([&] { read_text(folder.path(), 1); });
}

}  // namespace
}  // namespace shardwise::io
