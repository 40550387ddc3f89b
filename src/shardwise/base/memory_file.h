// For tests only: a file that lies in memory, for trying many contents quickly.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace shardwise {

class MemoryFile {
 public:
  MemoryFile()
      : file_(::memfd_create("mutant", MFD_CLOEXEC)),
        path_("/proc/self/fd/" + std::to_string(file_)) {}
  ~MemoryFile() { ::close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }

  // Nothing may have the file mapped.
  void set(std::string_view content) const {
    const auto size = static_cast<off_t>(content.size());
    if (::ftruncate(file_, size) != 0 ||
        ::pwrite(file_, content.data(), content.size(), 0) != size) {
      throw std::runtime_error("cannot write into a file in memory");
    }
  }

 private:
  int file_;
  std::string path_;
};

}  // namespace shardwise
