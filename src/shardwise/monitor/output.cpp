#include "shardwise/monitor/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "shardwise/base/check.h"

namespace shardwise::monitor {

int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd ready{descriptor, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void check_folder(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  SW_USER_CHECK(IoError, ::access(folder.c_str(), W_OK | X_OK) == 0, path, ": the folder '", folder,
                "' cannot be written (", std::strerror(errno), "); make it, or name another one");
}

}  // namespace shardwise::monitor
