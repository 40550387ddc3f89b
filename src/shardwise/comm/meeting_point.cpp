#include "shardwise/comm/meeting_point.h"

#include <c10/util/Logging.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shardwise/base/check.h"

namespace shardwise::comm {
namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using std::chrono::milliseconds;

constexpr milliseconds kLook(100);
// How much longer than the store's own time-out we wait, so that its more exact report comes first.
constexpr milliseconds kGrace(1000);
constexpr const char* kAllJoined = "all_joined";

constexpr const char* kLongerWait =
    "; shardwise.timeout_seconds, or DEEPSPEED_TIMEOUT in minutes, lets ranks wait longer";

// "0-2, 5"
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    text += concat(begin > 0 ? ", " : "", ranks[begin]);
    if (end > begin) text += concat(end > begin + 1 ? "-" : ", ", ranks[end]);
    begin = end + 1;
  }
  return text;
}

// What torch logs while it fails (a list of C++ frames for each attempt) says less than our error.
// TORCH_CPP_LOG_LEVEL=INFO still shows it.
class QuietTorch {
 public:
  QuietTorch() {
    if (FLAGS_caffe2_log_level >= c10::GLOG_WARNING) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
  ~QuietTorch() { FLAGS_caffe2_log_level = before_; }
  QuietTorch(const QuietTorch&) = delete;
  QuietTorch& operator=(const QuietTorch&) = delete;

 private:
  int before_ = FLAGS_caffe2_log_level;
};

class Meeting {
 public:
  Meeting(config::LaunchEnvironment environment, milliseconds timeout)
      : environment_(std::move(environment)), timeout_(timeout), deadline_(Clock::now() + timeout) {
    options_.port = static_cast<std::uint16_t>(environment_.master_port);
    options_.isServer = environment_.rank == 0 && !environment_.agent_store;
    options_.numWorkers = environment_.world_size;
    options_.waitWorkers = false;
    options_.timeout = timeout;
    options_.multiTenant = true;  // a process that joins once more may hold on to its first store
  }

  StorePtr meet() {
    const StorePtr store = c10::make_intrusive<c10d::PrefixStore>(
        concat("shardwise/", environment_.restart_count), connect());
    connected_ = true;
    call_the_roll(*store);
    return store;
  }

  bool is_overdue() const { return Clock::now() > deadline_ + kGrace; }

  [[noreturn]] void fail_without_answer() const {
    SW_USER_CHECK(CommunicationError, !connected_, me(), " joined at ", place(),
                  ", but the store there has stopped to answer: its process (rank 0) is stopped, "
                  "or the network between is cut; see the output of rank 0");
    if (!accepts_connections()) fail_to_connect("no answer");
    SW_FAIL(CommunicationError, me(), " reached a program at ", place(), " that did not answer in ",
            seconds(), " s as the store of rank 0 does: probably another program has the port; ",
            other_port());
  }

 private:
  std::string me() const {
    return concat("rank ", environment_.rank, " of ", environment_.world_size);
  }
  std::string place() const {
    return concat(environment_.master_addr, ":", environment_.master_port,
                  " (MASTER_ADDR, MASTER_PORT)");
  }
  double seconds() const { return std::chrono::duration<double>(timeout_).count(); }
  static std::string other_port() {
    return "end that program, or give all ranks another free port: MASTER_PORT, or --master-port "
           "of the launcher";
  }

  // Whether anything listens at the address; waits half a second at most for each that it has.
  bool accepts_connections() const {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const std::string port = std::to_string(environment_.master_port);
    if (::getaddrinfo(environment_.master_addr.c_str(), port.c_str(), &wanted, &found) != 0) {
      return false;
    }
    bool accepted = false;
    for (const addrinfo* at = found; at != nullptr && !accepted; at = at->ai_next) {
      const int number = ::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      pollfd ready{number, POLLOUT, 0};
      accepted = ::connect(number, at->ai_addr, at->ai_addrlen) == 0 ||
                 (errno == EINPROGRESS && ::poll(&ready, 1, 500) == 1 && ready.revents == POLLOUT);
      ::close(number);
    }
    ::freeaddrinfo(found);
    return accepted;
  }

  StorePtr connect() const {
    try {
      return c10::make_intrusive<c10d::TCPStore>(environment_.master_addr, options_);
    } catch (const std::exception& error) {
      fail_to_connect(reason_of(error));
    }
  }

  [[noreturn]] void fail_to_connect(const std::string& reason) const {
    SW_USER_CHECK(CommunicationError, reason.find("EADDRINUSE") == std::string::npos, me(),
                  " could not open the meeting point ", place(), ": port ",
                  environment_.master_port, " of this machine is in use by another program, ",
                  "perhaps an earlier run; ", other_port());
    SW_USER_CHECK(CommunicationError, !options_.isServer, me(),
                  " could not open the meeting point ", place(),
                  ": MASTER_ADDR must be an address of this machine, where rank 0 runs, and ",
                  "MASTER_PORT a port that it may open (", reason, ")");
    SW_FAIL(CommunicationError, me(), " found no meeting point at ", place(), " within ", seconds(),
            " s: check that rank 0 is running and that MASTER_ADDR and MASTER_PORT are the same ",
            "for all ranks, name its machine and pass the firewall", kLongerWait, " (", reason,
            ")");
  }

  static std::string key_of(int rank) { return concat("joined/", rank); }

  void call_the_roll(c10d::Store& store) const {
    try {
      store.set(key_of(environment_.rank), std::vector<std::uint8_t>{1});
      if (store.add("joined", 1) >= environment_.world_size) {
        store.set(kAllJoined, std::vector<std::uint8_t>{1});
      }
      const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now());
      store.wait({kAllJoined}, std::max(left, kLook));
    } catch (const std::exception& error) {
      fail_without(missing_ranks(store, reason_of(error)));
    }
  }

  std::vector<int> missing_ranks(c10d::Store& store, const std::string& reason) const {
    std::vector<int> missing;
    try {
      for (int rank = 0; rank < environment_.world_size; ++rank) {
        if (!store.check({key_of(rank)})) missing.push_back(rank);
      }
    } catch (const std::exception&) {
      SW_FAIL(CommunicationError, me(), " lost the meeting point ", place(),
              " while it waited for the other ranks: rank 0, which holds it, has ended; see the ",
              "output of rank 0 (", reason, ")");
    }
    return missing;
  }

  [[noreturn]] void fail_without(const std::vector<int>& missing) const {
    std::vector<int> there;
    for (int rank = 0; rank < environment_.world_size; ++rank) {
      if (!std::ranges::binary_search(missing, rank)) there.push_back(rank);
    }
    const char* plural = missing.size() == 1 ? " " : "s ";
    SW_FAIL(CommunicationError, me(), " waited ", seconds(), " s at ", place(), " for rank", plural,
            ranks_text(missing), "; there: ", ranks_text(there),
            ". See the output of the missing rank", plural,
            "or start it with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE=",
            environment_.world_size, kLongerWait);
  }

  config::LaunchEnvironment environment_;
  milliseconds timeout_;
  Clock::time_point deadline_;
  c10d::TCPStoreOptions options_;
  std::atomic<bool> connected_ = false;
};

}  // namespace

// Note [Joining in a thread]
// TCPStore's client waits without end for the answer of whatever accepts its connection, and
// nothing outside can end that. So it runs in a thread of its own, which is left behind when time
// is up: it holds what it uses, and does not keep the process from ending.
c10::intrusive_ptr<c10d::Store> meet_ranks(const config::LaunchEnvironment& environment,
                                           std::chrono::milliseconds timeout,
                                           const std::function<void()>& while_waiting) {
  const QuietTorch quiet;
  const auto meeting = std::make_shared<Meeting>(environment, timeout);
  std::packaged_task<StorePtr()> task([meeting] { return meeting->meet(); });
  std::future<StorePtr> store = task.get_future();
  std::thread(std::move(task)).detach();
  while (store.wait_for(kLook) != std::future_status::ready) {
    if (while_waiting) while_waiting();
    if (meeting->is_overdue()) meeting->fail_without_answer();
  }
  return store.get();
}

std::string reason_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace shardwise::comm
