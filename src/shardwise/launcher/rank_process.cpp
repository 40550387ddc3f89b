#include "shardwise/launcher/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/launcher/clock.h"

namespace shardwise::launcher {
namespace {

// A larger pipe lets a chatty rank run ahead while the launcher writes.
constexpr int kPipeBytes = 1 << 18;

struct Pipes {
  int out[2];
  int err[2];
  int error[2];  // errno of a failed execution; closed by a successful one
};

void open_pipe(int (&ends)[2]) {
  SW_USER_CHECK(IoError, ::pipe2(ends, O_CLOEXEC) == 0, "launch: cannot open a pipe (",
                std::strerror(errno), "); start fewer ranks or raise `ulimit -n`");
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

// The launcher ignores SIGPIPE and blocks what it handles; what it inherited ignored (nohup) stays
// so.
void reset_signals() {
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// The child between fork and exec: only system calls from here on.
[[noreturn]] void become(const char* file, char* const* arguments, char* const* environment,
                         bool keep_input, const Pipes& pipes, pid_t launcher) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(128 + SIGKILL);  // it died before the line above
  if (!keep_input) {
    const int null = ::open("/dev/null", O_RDONLY);
    if (null >= 0) ::dup2(null, STDIN_FILENO);
  }
  ::dup2(pipes.out[1], STDOUT_FILENO);
  ::dup2(pipes.err[1], STDERR_FILENO);
  reset_signals();
  ::execve(file, arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(pipes.error[1], &error, sizeof(error));
  ::_exit(127);
}

// Waits for the execution; returns 0 or the errno of its failure.
int execution_error(int pipe) {
  int error = 0;
  ssize_t count = 0;
  do {
    count = ::read(pipe, &error, sizeof(error));
  } while (count < 0 && errno == EINTR);
  return count == sizeof(error) ? error : 0;
}

[[noreturn]] void fail_execution(const SpawnRequest& request, int error) {
  const char* fix = "check that it is a program for this machine";
  if (error == ENOEXEC) {
    fix = "a script needs a first line such as #!/bin/sh, or its interpreter before it";
  } else if (error == E2BIG) {
    fix = "its arguments and environment are too long";
  } else if (error == ENOENT) {
    fix = "the interpreter in its first line, or its loader, does not exist";
  }
  SW_FAIL(IoError, "launch: rank ", request.rank, ": cannot execute '", request.file, "' (",
          std::strerror(error), "); ", fix);
}

}  // namespace

RankProcess::RankProcess(const SpawnRequest& request) {
  Pipes pipes{};
  for (auto* ends : {&pipes.out, &pipes.err, &pipes.error}) open_pipe(*ends);
  const std::vector<char*> arguments = pointers(request.arguments);
  const std::vector<char*> environment = pointers(request.environment);
  const pid_t launcher = ::getpid();
  started_ = now_seconds();
  pid_ = ::fork();
  if (pid_ == 0) {
    become(request.file.c_str(), arguments.data(), environment.data(), request.keep_input, pipes,
           launcher);
  }
  const int fork_error = errno;
  for (const int end : {pipes.out[1], pipes.err[1], pipes.error[1]}) ::close(end);
  pipes_[0] = pipes.out[0];
  pipes_[1] = pipes.err[0];
  int error = 0;
  if (pid_ > 0) {
    ::setpgid(pid_, pid_);  // here too: whoever is first
    error = execution_error(pipes.error[0]);
  }
  ::close(pipes.error[0]);
  if (pid_ < 0 || error != 0) {
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    for (const Stream stream : {Stream::kOut, Stream::kErr}) close_pipe(stream);
    SW_USER_CHECK(IoError, pid_ > 0, "launch: cannot start rank ", request.rank, " (",
                  std::strerror(fork_error), "); start fewer ranks or raise `ulimit -u`");
    fail_execution(request, error);
  }
  for (const int end : pipes_) {
    ::fcntl(end, F_SETFL, O_NONBLOCK);
    ::fcntl(end, F_SETPIPE_SZ, kPipeBytes);
  }
}

RankProcess::~RankProcess() {
  for (const Stream stream : {Stream::kOut, Stream::kErr}) close_pipe(stream);
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pipes_{std::exchange(other.pipes_[0], -1), std::exchange(other.pipes_[1], -1)},
      started_(other.started_),
      ended_at_(other.ended_at_),
      wait_status_(other.wait_status_),
      ended_(other.ended_),
      group_gone_(other.group_gone_) {}

void RankProcess::close_pipe(Stream stream) {
  int& end = pipes_[static_cast<int>(stream)];
  if (end >= 0) ::close(end);
  end = -1;
}

void RankProcess::set_ended(int wait_status, double when) {
  ended_ = true;
  wait_status_ = wait_status;
  ended_at_ = when;
}

bool RankProcess::stopped() const {
  std::ifstream file(concat("/proc/", pid_, "/stat"));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');  // proc(5): "pid (name) state ..."
  return name_end != std::string::npos && name_end + 2 < text.size() &&
         (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
}

bool RankProcess::signal_group(int signal) {
  if (group_gone_) return false;
  const bool sent = ::kill(-pid_, signal) == 0 || errno == EPERM;
  // Once the leader has been reaped an empty group stays empty, and its number may be reused.
  if (!sent && ended_) group_gone_ = true;
  return sent;
}

bool RankProcess::group_alive() { return signal_group(0); }

}  // namespace shardwise::launcher
