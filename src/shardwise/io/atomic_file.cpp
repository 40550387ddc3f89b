#include "shardwise/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "shardwise/base/check.h"
#include "shardwise/io/quote.h"

namespace shardwise::io {
namespace {

// Large enough that a write's fixed costs vanish, small enough to lie in the cache.
constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

// Linux writes at most 2 GiB - 4 KiB a call.
constexpr std::size_t kMostBytesACall = std::size_t{1} << 30;

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
}

std::string temporary_name(const std::string& path, int attempt) {
  return concat(path, ".", ::getpid(), "-", attempt, ".tmp");
}

// Makes the rename itself last. File systems without that notion say EINVAL or ENOTSUP; a folder
// that may be written but not read cannot be opened.
void sync_folder(const std::string& path) {
  const Descriptor folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.is_open() && ::fsync(folder.number()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail_io(path, "sync its folder", errno);
  }
}

}  // namespace

void check_replaceable(const std::string& path) {
  SW_USER_CHECK(IoError, !path.empty() && path.find('\0') == std::string::npos, quoted(path),
                ": cannot write: the name of a file must not be empty or hold a zero byte");
  struct stat status{};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  const char* special = exists ? special_kind(status.st_mode) : nullptr;
  SW_USER_CHECK(IoError, special == nullptr, path, ": cannot write: it is ", special,
                "; remove it, or give the name of a regular file");
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  check_replaceable(path_);
  // Not mkstemp: its files are readable by their owner only, whatever the umask says.
  for (int attempt = 0; !file_.is_open(); ++attempt) {
    std::string name = temporary_name(path_, attempt);
    file_ = Descriptor(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file_.is_open()) {
      listed_.emplace(LiveFile::List::kUnfinished, name);
      temporary_ = std::move(name);
    } else if (errno != EEXIST && errno != EINTR) {
      fail_io(path_, "write into its folder", errno);
    }
  }
  buffer_.reserve(kBufferBytes);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  SW_CHECK(file_.is_open(), path_, ": write() after commit()");
  synced_ = false;
  written_ += static_cast<std::int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    flush();
  }
  if (bytes.size() >= kBufferBytes) {
    write_through(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::overwrite(std::int64_t offset, std::span<const std::byte> bytes) {
  SW_CHECK(file_.is_open(), path_, ": overwrite() after commit()");
  const auto size = static_cast<std::int64_t>(bytes.size());
  SW_CHECK(offset >= 0 && size <= written_ && offset <= written_ - size, path_, ": ", size,
           " bytes at ", offset, " of ", written_, " written");
  flush();
  synced_ = false;
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pwrite(file_.number(), bytes.data() + done, bytes.size() - done,
                                   static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (count < 0 && errno != EINTR) {
      fail_io(path_, "write", errno);
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
}

void AtomicFile::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void AtomicFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t most = std::min(bytes.size(), kMostBytesACall);
    const ssize_t count = ::write(file_.number(), bytes.data(), most);
    if (count < 0 && errno != EINTR) {
      fail_io(path_, "write", errno);
    }
    bytes = bytes.subspan(count > 0 ? static_cast<std::size_t>(count) : 0);
  }
}

void AtomicFile::sync() {
  SW_CHECK(file_.is_open(), path_, ": sync() after commit()");
  flush();
  if (!synced_ && ::fsync(file_.number()) != 0) {
    fail_io(path_, "bring it onto the disk", errno);
  }
  synced_ = true;
}

void AtomicFile::commit() {
  sync();
  file_.close();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail_io(path_, "rename its temporary file", errno);
  }
  temporary_.clear();
  listed_.reset();
  sync_folder(path_);
}

std::string read_text(const std::string& path, std::size_t most) {
  constexpr std::size_t kFirstPiece = std::size_t{1} << 16;
  const Descriptor file = open_to_read(path);
  std::string text;
  // Doubling pieces: a size that the file system states is not to be trusted (/proc says 0).
  while (text.size() <= most) {
    const std::size_t old = text.size();
    const std::size_t wanted = std::max(old, kFirstPiece);
    const std::size_t piece = wanted > most - old ? most - old + 1 : wanted;
    text.resize(old + piece);
    const std::size_t count = read_some(file, path, std::span(text).subspan(old));
    text.resize(old + count);
    if (count < piece) {
      return text;
    }
  }
  SW_FAIL(DataError, path, ": is larger than ", most,
          " bytes, the most that such a file may have; check that it is the right file");
}

}  // namespace shardwise::io
