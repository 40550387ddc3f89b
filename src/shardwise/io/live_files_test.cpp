#include "shardwise/io/live_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <optional>

#include "shardwise/base/error.h"
#include "shardwise/io/atomic_file.h"
#include "shardwise/io/memory_map.h"
#include "shardwise/io/temporary_folder.h"

namespace shardwise::io {
namespace {

constexpr std::size_t kPages = 4 * 65536;  // several pages of any machine

TEST(LiveFiles, AFileThatBecomesShorterIsNamed) {
  const TemporaryFolder folder;
  const MemoryMap other(folder.put("other", std::string(kPages, 'x')));
  const MemoryMap map(folder.put("corpus", std::string(kPages, 'x')));
  const auto read_the_end = [&] {
    name_file_on_bus_error();
    std::filesystem::resize_file(map.path(), 1);
    const volatile std::byte* last = &map.bytes().back();
    ::_exit(std::to_integer<int>(*last));
  };
  EXPECT_EXIT(read_the_end(), testing::ExitedWithCode(exit_code(ErrorKind::kIo)),
              "error: .*/corpus: cannot read it any more: it was made shorter");
}

TEST(LiveFiles, ABusErrorOfAnotherCauseStaysOne) {
  const TemporaryFolder folder;
  const MemoryMap map(folder.put("corpus", "text"));
  const auto end = [] {
    name_file_on_bus_error();
    std::raise(SIGBUS);
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGBUS), "^$");
}

TEST(LiveFiles, ASignalRemovesWhatIsNotWhole) {
  const TemporaryFolder folder;
  const auto write = [&] {
    remove_unfinished_files_on({SIGTERM});
    std::optional<AtomicFile> first(folder.path("a"));
    AtomicFile second(folder.path("b"));
    const AtomicFile third(folder.path("c"));
    first.reset();
    second.write("whole");
    second.commit();
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(write(), testing::KilledBySignal(SIGTERM), "^$");
  EXPECT_EQ(read_text(folder.path("b"), 100), "whole");
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST(LiveFiles, AnIgnoredSignalStaysSo) {
  const auto write = [] {
    std::signal(SIGINT, SIG_IGN);
    remove_unfinished_files_on({SIGINT});
    std::raise(SIGINT);
    ::_exit(7);
  };
  EXPECT_EXIT(write(), testing::ExitedWithCode(7), "^$");
}

}  // namespace
}  // namespace shardwise::io
