#include "shardwise/diagnostics/flight_recorder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "shardwise/comm/transport.h"

namespace shardwise::diagnostics {
namespace {

TEST(FlightRecorder, KnowsWhatIsUnderWay) {
  comm::Channel channel(comm::make_single_transport(), "gather");
  auto recorder = std::make_unique<FlightRecorder>(std::vector<comm::Channel*>{&channel});
  EXPECT_EQ(recorder->last_finished(), "");
  const at::Tensor tensor = at::ones({4});
  const comm::WorkPtr first = channel.all_reduce(tensor, 1.0, "blocks.0");
  const comm::WorkPtr second = channel.broadcast(tensor, 0, "blocks.1");
  EXPECT_EQ(recorder->under_way(),
            (std::vector<std::string>{"all_reduce for blocks.0", "broadcast for blocks.1"}));
  second->wait();
  EXPECT_EQ(recorder->last_finished(), "broadcast for blocks.1");
  EXPECT_EQ(recorder->under_way(), (std::vector<std::string>{"all_reduce for blocks.0"}));
  first->wait();
  EXPECT_TRUE(recorder->under_way().empty());
  EXPECT_EQ(recorder->count(), 2);
  recorder.reset();
  channel.all_reduce(tensor, 1.0, "blocks.2")->wait();  // nobody listens any more
}

// Collectives as on a device: wait() returns at once, and the end comes when the test says so.
class DeviceTransport : public comm::Transport {
 public:
  explicit DeviceTransport(const int* ended) : ended_(ended) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "fake"; }
  comm::WorkPtr all_gather(const at::Tensor&, const at::Tensor&, device::Event*) override {
    return launch();
  }
  comm::WorkPtr reduce_scatter(const at::Tensor&, const at::Tensor&,
                               const comm::Reduction&) override {
    return launch();
  }
  comm::WorkPtr all_reduce(const at::Tensor&, double) override { return launch(); }
  comm::WorkPtr broadcast(const at::Tensor&, int) override { return launch(); }
  comm::WorkPtr all_to_all(const std::vector<at::Tensor>&,
                           const std::vector<at::Tensor>&) override {
    return launch();
  }

 private:
  struct DeviceWork : comm::Work {
    DeviceWork(const int* ended, int number) : ended(ended), number(number) {}
    void wait() override {}
    comm::Finished finished() const override {
      return [ended = ended, number = number] { return number < *ended; };
    }
    const int* ended;
    int number;
  };
  comm::WorkPtr launch() { return std::make_unique<DeviceWork>(ended_, launched_++); }

  const int* ended_;
  int launched_ = 0;
};

TEST(FlightRecorder, KnowsWhatADeviceStillCarriesOut) {
  int ended = 0;
  comm::Channel channel(std::make_shared<DeviceTransport>(&ended), "gather");
  const FlightRecorder recorder({&channel});
  const at::Tensor tensor = at::ones({4});
  channel.broadcast(tensor, 0, "blocks.0")->wait();
  channel.broadcast(tensor, 0, "blocks.1")->wait();
  EXPECT_EQ(recorder.under_way(),
            (std::vector<std::string>{"broadcast for blocks.0", "broadcast for blocks.1"}));
  EXPECT_EQ(recorder.last_finished(), "");
  ended = 1;
  EXPECT_EQ(recorder.under_way(), (std::vector<std::string>{"broadcast for blocks.1"}));
  EXPECT_EQ(recorder.last_finished(), "broadcast for blocks.0");
  ended = 2;
  channel.broadcast(tensor, 0, "blocks.2")->wait();  // a launch drops what has ended, too
  EXPECT_EQ(recorder.last_finished(), "broadcast for blocks.1");
  EXPECT_EQ(recorder.under_way(), (std::vector<std::string>{"broadcast for blocks.2"}));
}

}  // namespace
}  // namespace shardwise::diagnostics
