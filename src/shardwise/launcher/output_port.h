// One output of the launcher (standard output, standard error): a bounded buffer that is written
// without ever blocking, so that a paused terminal cannot keep signals from being handled.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardwise::launcher {

// Not thread-safe.
class OutputPort {
 public:
  // Writes to `fd`, which stays the caller's. Pipes and terminals are opened a second time in
  // non-blocking mode, which leaves the mode of the caller's descriptor alone.
  explicit OutputPort(int fd);
  ~OutputPort();
  OutputPort(const OutputPort&) = delete;
  OutputPort& operator=(const OutputPort&) = delete;

  bool is_terminal() const { return is_terminal_; }
  // Columns of the terminal; 0 where it is none or does not say.
  int terminal_width() const;

  void append(std::string_view text) { pending_.append(text); }

  // Writes what can be written now. Afterwards `failed()` tells whether the reader has gone.
  void flush();

  int fd() const { return fd_; }
  bool waiting() const { return written_ < pending_.size() && !failed_; }
  // Whether so much waits that nothing should be added.
  bool full() const { return pending_.size() - written_ > kFull && !failed_; }
  bool failed() const { return failed_; }

 private:
  static constexpr std::size_t kFull = std::size_t{1} << 20;

  int fd_;
  bool owned_ = false;
  bool is_terminal_ = false;
  bool failed_ = false;
  std::string pending_;
  std::size_t written_ = 0;
};

}  // namespace shardwise::launcher
