#include "shardwise/io/memory_map.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <optional>

#include "shardwise/io/failure.h"
#include "shardwise/io/temporary_folder.h"

namespace shardwise::io {
namespace {

std::string text_of(const MemoryMap& map) {
  const auto bytes = map.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(MemoryMap, BytesOfTheFile) {
  const TemporaryFolder folder;
  const MemoryMap map(folder.put("a", "some bytes"));
  EXPECT_EQ(text_of(map), "some bytes");
  EXPECT_EQ(map.path(), folder.path("a"));
}

TEST(MemoryMap, ACopyKeepsTheBytesOfAFileThatIsGone) {
  const TemporaryFolder folder;
  std::optional<MemoryMap> first(folder.put("a", "kept"));
  const MemoryMap second = *first;
  first.reset();
  std::filesystem::remove(folder.path("a"));
  EXPECT_EQ(text_of(second), "kept");
}

TEST(MemoryMap, AnEmptyFile) {
  const TemporaryFolder folder;
  EXPECT_TRUE(MemoryMap(folder.put("a", "")).bytes().empty());
}

TEST(MemoryMap, ErrorsNamePathAndReason) {
  const TemporaryFolder folder;
  const auto message = [](const std::string& path) {
    return failure<IoError>([&] { MemoryMap{path}; });
  };
  EXPECT_EQ(message(folder.path("absent")),
            folder.path("absent") + ": cannot open: No such file or directory");
  EXPECT_TRUE(contains(message(folder.path()), folder.path() + ": is a folder"));
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(message(folder.path("pipe")), "pipe"));
  EXPECT_TRUE(contains(message("/dev/zero"), "device"));
  EXPECT_TRUE(contains(message(folder.put("a", "") + std::string(1, '\0')), "zero byte"));
}

}  // namespace
}  // namespace shardwise::io
