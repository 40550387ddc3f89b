// Files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/io/descriptor.h"
#include "shardwise/io/live_files.h"

namespace shardwise::io {

// Writes into a temporary file beside `path` ("<path>.<process>-<n>.tmp"); commit() syncs it and
// renames it over `path`. Without commit() nothing is left behind, unless the process is killed or
// ended by a signal that remove_unfinished_files_on() was not called for.
// Every function throws IoError with path and reason (full disk, no permission, ...); the only
// thing to do with the object then is to destroy it. Writes are buffered. Not thread-safe.
class AtomicFile {
 public:
  // Throws also as check_replaceable() does, and where the folder is missing.
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Writes at a position before the end (a header whose numbers are known last).
  void overwrite(std::int64_t offset, std::span<const std::byte> bytes);
  // Brings everything written so far onto the disk, so that the next commit() is quick.
  void sync();
  // Once; nothing may be written afterwards.
  void commit();

 private:
  void flush();
  void write_through(std::span<const std::byte> bytes);

  std::string path_, temporary_;
  std::optional<LiveFile> listed_;
  Descriptor file_;
  std::vector<std::byte> buffer_;
  std::int64_t written_ = 0;  // bytes, with those in the buffer
  bool synced_ = false;
};

// Throws IoError where `path` is there but no regular file, which a new file must not replace.
void check_replaceable(const std::string& path);

// Reads a whole file. Throws IoError where that fails, and DataError where the file is larger than
// `most` bytes (nothing much is allocated then).
std::string read_text(const std::string& path, std::size_t most);

}  // namespace shardwise::io
