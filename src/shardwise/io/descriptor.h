// Open files of the operating system, and the errors they give.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

namespace shardwise::io {

// Closes itself. Owned by one holder; not thread-safe.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void close();

 private:
  int release();

  int number_ = -1;
};

// What a file is by its st_mode: "a folder", "a pipe", "a socket" or "a device"; null for a regular
// file.
const char* special_kind(mode_t mode);

// Opens a regular file to read; throws IoError for what is missing, forbidden, a folder, a device
// or a pipe.
Descriptor open_to_read(const std::string& path);

// Throws IoError.
std::int64_t file_bytes(const Descriptor& file, const std::string& path);

// Reads up to out.size() bytes; fewer only at the end of the file. Throws IoError.
std::size_t read_some(const Descriptor& file, const std::string& path, std::span<char> out);

// IoError "<path>: cannot <action>: <the system's words for `error`>".
[[noreturn]] void fail_io(const std::string& path, const std::string& action, int error);

}  // namespace shardwise::io
