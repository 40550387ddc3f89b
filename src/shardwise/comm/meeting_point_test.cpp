#include "shardwise/comm/meeting_point.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardwise/base/error.h"

namespace shardwise::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class MeetingPoint : public testing::Test {
 protected:
  MeetingPoint() { testing::internal::CaptureStderr(); }
  ~MeetingPoint() override {
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
  }
};

// A program that accepts connections and says nothing.
class ForeignListener {
 public:
  ForeignListener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* general = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_, general, size) != 0 || ::listen(socket_, 8) != 0 ||
        ::getsockname(socket_, general, &size) != 0) {
      throw std::runtime_error("no port for the test");
    }
    port_ = ::ntohs(address.sin_port);
  }
  ~ForeignListener() { ::close(socket_); }
  int port() const { return port_; }

 private:
  int socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  int port_ = 0;
};

int free_port() { return ForeignListener().port(); }

config::LaunchEnvironment rank_of(int rank, int world_size, int port) {
  config::LaunchEnvironment environment;
  environment.rank = rank;
  environment.world_size = world_size;
  environment.master_port = port;
  environment.present = true;
  return environment;
}

// The error of one rank that tries for a second. Every one must hold the address and no C++ frames.
std::string failure(const config::LaunchEnvironment& environment) {
  const auto start = Clock::now();
  try {
    meet_ranks(environment, milliseconds(1000));
  } catch (const CommunicationError& error) {
    const std::string text = error.what();
    EXPECT_LT(Clock::now() - start, milliseconds(4000)) << text;
    EXPECT_NE(text.find("127.0.0.1:" + std::to_string(environment.master_port)), std::string::npos)
        << text;
    EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  ADD_FAILURE() << "the ranks met";
  return "";
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
  }
}

TEST_F(MeetingPoint, RanksMeet) {
  const int port = free_port();
  std::vector<std::future<c10::intrusive_ptr<c10d::Store>>> stores;
  for (int rank = 0; rank < 3; ++rank) {
    stores.push_back(std::async(std::launch::async, [rank, port] {
      return meet_ranks(rank_of(rank, 3, port), milliseconds(10000));
    }));
  }
  const auto first = stores[0].get();
  const auto second = stores[1].get();
  first->set("key", std::vector<std::uint8_t>{42});
  EXPECT_EQ(second->get("key"), std::vector<std::uint8_t>{42});
}

TEST_F(MeetingPoint, AProgramThatNeverAnswers) {
  const ForeignListener listener;
  expect_parts(failure(rank_of(1, 2, listener.port())),
               {"rank 1 of 2", "another program has the port", "--master-port"});
}

TEST_F(MeetingPoint, APortInUseOnTheFirstRank) {
  const ForeignListener listener;
  expect_parts(failure(rank_of(0, 2, listener.port())),
               {"rank 0 of 2", "in use by another program", "--master-port"});
}

TEST_F(MeetingPoint, NobodyListens) {
  expect_parts(failure(rank_of(1, 2, free_port())),
               {"rank 1 of 2", "no meeting point", "check that rank 0 is running", "MASTER_ADDR"});
}

TEST_F(MeetingPoint, MissingRanksAreNamed) {
  const int port = free_port();
  auto other = std::async(std::launch::async, [&] { return failure(rank_of(3, 7, port)); });
  expect_parts(failure(rank_of(0, 7, port)), {"rank 0 of 7", "for ranks 1, 2, 4-6; there: 0, 3",
                                              "WORLD_SIZE=7", "shardwise.timeout_seconds"});
  EXPECT_FALSE(other.get().empty());  // who is missing, or that rank 0 has gone just before
}

TEST_F(MeetingPoint, TheWaitCanBeEnded) {
  const auto start = Clock::now();
  const auto give_up = [] { throw std::domain_error("enough"); };
  EXPECT_THROW(meet_ranks(rank_of(1, 2, free_port()), milliseconds(3000), give_up),
               std::domain_error);
  EXPECT_LT(Clock::now() - start, milliseconds(1500));
}

}  // namespace
}  // namespace shardwise::comm
