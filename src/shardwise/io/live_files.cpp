#include "shardwise/io/live_files.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <utility>

#include "shardwise/base/error.h"

namespace shardwise::io {

// The two lists.
struct LiveFiles {
  // Held with all signals blocked: no handler can interrupt the thread that holds it, so that a
  // handler which waits for it waits for a thread that runs.
  class Lock {
   public:
    Lock() {
      sigset_t all;
      sigfillset(&all);
      ::pthread_sigmask(SIG_BLOCK, &all, &mask_);
      while (busy.test_and_set(std::memory_order_acquire)) {
      }
    }
    ~Lock() {
      busy.clear(std::memory_order_release);
      ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    sigset_t mask_;
  };

  static LiveFile*& first(LiveFile::List list) { return heads[static_cast<std::size_t>(list)]; }

  // nullptr: it lies in none.
  static const char* path_of_map(const void* address) {
    const Lock lock;
    for (const LiveFile* file = first(LiveFile::List::kMapped); file; file = file->behind_) {
      const std::byte* at = static_cast<const std::byte*>(address);
      if (at >= file->bytes_.data() && at < file->bytes_.data() + file->bytes_.size()) {
        return file->path_.c_str();
      }
    }
    return nullptr;
  }

  static void remove_unfinished() {
    const Lock lock;
    for (const LiveFile* file = first(LiveFile::List::kUnfinished); file; file = file->behind_) {
      ::unlink(file->path_.c_str());
    }
  }

  static std::atomic_flag busy;
  static LiveFile* heads[2];
};

constinit std::atomic_flag LiveFiles::busy;
constinit LiveFile* LiveFiles::heads[2] = {};

LiveFile::LiveFile(List list, std::string path, std::span<const std::byte> bytes)
    : list_(list), path_(std::move(path)), bytes_(bytes) {
  const LiveFiles::Lock lock;
  behind_ = std::exchange(LiveFiles::first(list), this);
  if (behind_ != nullptr) behind_->before_ = this;
}

LiveFile::~LiveFile() {
  const LiveFiles::Lock lock;
  (before_ != nullptr ? before_->behind_ : LiveFiles::first(list_)) = behind_;
  if (behind_ != nullptr) behind_->before_ = before_;
}

void remove_unfinished_files() { LiveFiles::remove_unfinished(); }

namespace {

void say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void end_by(int signal) {
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // waits until the handler is back
}

void on_bus_error(int signal, siginfo_t* info, void*) {
  const char* path = LiveFiles::path_of_map(info->si_addr);
  if (path == nullptr) {
    end_by(signal);
    return;
  }
  say("[shardwise] error: ");
  say(path);
  say(": cannot read it any more: it was made shorter while it was in use, or its disk fails; "
      "restore the file, start again, and replace files by renaming a new one over the old\n");
  ::_exit(exit_code(ErrorKind::kIo));
}

void on_end(int signal) {
  remove_unfinished_files();
  end_by(signal);
}

}  // namespace

void name_file_on_bus_error() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

void remove_unfinished_files_on(std::initializer_list<int> signals) {
  for (const int signal : signals) {
    struct sigaction action{};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action.sa_handler = on_end;
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace shardwise::io
