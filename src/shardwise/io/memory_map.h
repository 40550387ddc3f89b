// Read-only memory maps of whole files.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace shardwise::io {

// Shared and immutable; safe to read from several threads. The bytes stay mapped while a copy
// lives, also when the file is deleted or replaced by a rename meanwhile. A file that somebody
// truncates while it is mapped ends the process with SIGBUS (see name_file_on_bus_error()): replace
// files by AtomicFile, never in place.
class MemoryMap {
 public:
  // Throws IoError that names the path and the reason (missing, a folder, no permission, a pipe).
  // An empty file gives an empty span.
  explicit MemoryMap(const std::string& path);

  // Begins at a page boundary.
  std::span<const std::byte> bytes() const;
  const std::string& path() const;

 private:
  struct Mapping;
  std::shared_ptr<const Mapping> mapping_;
};

}  // namespace shardwise::io
