#include "shardwise/launcher/output_port.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace shardwise::launcher {
namespace {

// A non-blocking description of the same pipe or terminal, or -1. Regular files need none (they
// never block, and a second description would have its own offset); sockets cannot be opened again.
int reopen(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) != 0 || !(S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode))) {
    return -1;
  }
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

}  // namespace

OutputPort::OutputPort(int fd) : fd_(fd), is_terminal_(::isatty(fd) == 1) {
  const int own = reopen(fd);
  if (own >= 0) {
    fd_ = own;
    owned_ = true;
  }
}

OutputPort::~OutputPort() {
  if (owned_) ::close(fd_);
}

int OutputPort::terminal_width() const {
  winsize size{};
  return is_terminal_ && ::ioctl(fd_, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void OutputPort::flush() {
  while (waiting()) {
    const ssize_t count = ::write(fd_, pending_.data() + written_, pending_.size() - written_);
    if (count >= 0) {
      written_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      failed_ = true;
    }
  }
  if (!waiting()) {
    pending_.clear();
    written_ = 0;
  } else if (written_ > kFull) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace shardwise::launcher
