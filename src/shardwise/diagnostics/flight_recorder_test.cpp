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

}  // namespace
}  // namespace shardwise::diagnostics
