#include "shardwise/io/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/io/quote.h"

namespace shardwise::io {
namespace {

struct stat status_of(const Descriptor& file, const std::string& path) {
  struct stat status{};
  if (::fstat(file.number(), &status) != 0) {
    fail_io(path, "read its size", errno);
  }
  return status;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    number_ = other.release();
  }
  return *this;
}

void Descriptor::close() {
  if (is_open()) {
    ::close(release());
  }
}

int Descriptor::release() { return std::exchange(number_, -1); }

void fail_io(const std::string& path, const std::string& action, int error) {
  SW_FAIL(IoError, path, ": cannot ", action, ": ", std::generic_category().message(error));
}

const char* special_kind(mode_t mode) {
  if (S_ISREG(mode)) return nullptr;
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

Descriptor open_to_read(const std::string& path) {
  // A path with a zero byte would silently name another file.
  SW_USER_CHECK(IoError, path.find('\0') == std::string::npos, printable(path),
                ": cannot open: the name holds a zero byte");
  // Without O_NONBLOCK the call would wait for the writer of a pipe.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    fail_io(path, "open", errno);
  }
  const struct stat status = status_of(file, path);
  SW_USER_CHECK(IoError, !S_ISDIR(status.st_mode), path,
                ": is a folder; give a file, for instance one inside of it");
  const char* special = special_kind(status.st_mode);
  SW_USER_CHECK(IoError, special == nullptr, path, ": is ", special, "; give a regular file");
  return file;
}

std::int64_t file_bytes(const Descriptor& file, const std::string& path) {
  return status_of(file, path).st_size;
}

std::size_t read_some(const Descriptor& file, const std::string& path, std::span<char> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::read(file.number(), out.data() + done, out.size() - done);
    if (count == 0) {
      break;
    }
    if (count < 0 && errno != EINTR) {
      fail_io(path, "read", errno);
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  return done;
}

}  // namespace shardwise::io
