#include "shardwise/comm/channel.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shardwise/base/error.h"
#include "shardwise/comm/c10d_transport.h"
#include "shardwise/comm/gloo/gloo_group.h"
#include "shardwise/comm/thread_transport.h"

namespace shardwise::comm {
namespace {

// The same collectives over each transport: rank r contributes r+1, so sums have a closed form.
void check_collectives(Channel& channel) {
  const int n = channel.size();
  const int rank = channel.rank();
  const at::Tensor mine = at::full({3}, rank + 1.0F);
  const at::Tensor all = at::zeros({3 * n});
  channel.all_gather(all, mine, "test")->wait();
  for (int r = 0; r < n; ++r) {
    EXPECT_EQ(all[3 * r].item<float>(), r + 1.0F);
  }
  // Element i of rank r is r + 1 + i, so a part that lands elsewhere shows.
  const float ranks = n * (n + 1) / 2.0F;
  const auto sum_at = [&](int element) { return ranks + static_cast<float>(n * element); };
  const at::Tensor input = at::arange(2 * n, at::kFloat) + (rank + 1);
  const at::Tensor mine_summed = at::arange(2, at::kFloat) * n + sum_at(2 * rank);
  const at::Tensor part = at::full({2}, 100.0F);
  channel.reduce_scatter(part, input, {.scale = 0.5}, "test")->wait();
  EXPECT_TRUE(at::equal(part, mine_summed * 0.5));
  channel.reduce_scatter(part, input, {.scale = 1.0, .accumulate = true}, "test")->wait();
  EXPECT_TRUE(at::equal(part, mine_summed * 1.5));
  for (const int length : {n, n + 1, 2 * n - 1}) {  // parts of equal size, or a smaller last one
    const at::Tensor reduced = at::arange(length, at::kFloat) + (rank + 1);
    channel.all_reduce(reduced, 1.0 / n, "test")->wait();
    EXPECT_TRUE(at::allclose(reduced, (at::arange(length, at::kFloat) * n + sum_at(0)) / n));
  }
  const at::Tensor value = at::full({4}, static_cast<float>(rank));
  channel.broadcast(value, n - 1, "test")->wait();
  EXPECT_TRUE(at::equal(value, at::full({4}, n - 1.0F)));
  // Rank r has r·s elements of value 10·r + s for rank s: sizes differ, and some are 0.
  std::vector<at::Tensor> out, in;
  std::int64_t elements = 0;
  for (int r = 0; r < n; ++r) {
    in.push_back(at::full({rank * r}, 10.0F * rank + r));
    out.push_back(at::zeros({rank * r}));
    elements += r * n * (n - 1) / 2;
  }
  channel.all_to_all(out, in, elements, "test")->wait();
  for (int r = 0; r < n; ++r) {
    EXPECT_TRUE(at::equal(out[r], at::full({rank * r}, 10.0F * r + rank)));
  }
}

TEST(ChannelTest, CollectivesOverThreads) {
  for (int n : {1, 2, 3, 4}) {
    run_ranks(n, [](const ShardChannels& channels) { check_collectives(*channels.gather); });
  }
}

TEST(ChannelTest, CollectivesOfASingleRank) {
  Channel channel(make_single_transport(), "test");
  check_collectives(channel);
}

// Ranks are threads, but the messages go through sockets.
void run_gloo_ranks(int n, const std::function<void(Channel&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      const std::chrono::milliseconds timeout(5000);
      auto backend = make_gloo_backend(store, rank, n, timeout);
      Channel channel(make_cpu_transport(backend, timeout), "test");
      body(channel);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(ChannelTest, CollectivesOverGlooWithoutPython) {
  if (!has_native_gloo()) {
    GTEST_SKIP() << "built without Gloo's headers";
  }
  for (int n : {2, 3}) {
    run_gloo_ranks(n, check_collectives);
  }
}

TEST(ChannelTest, SixteenBitSumsAreRoundedOnceInRankOrder) {
  run_ranks(3, [](const ShardChannels& channels) {
    Channel& channel = *channels.reduce;
    // 1 + 2^-8 + 2^-8: in bf16 each addition alone would be lost, together they are one ulp.
    const float small = channel.rank() == 0 ? 1.0F : 1.0F / 256;
    const at::Tensor input = at::full({3}, small).to(at::kBFloat16);
    const at::Tensor part = at::zeros({1}, at::kBFloat16);
    channel.reduce_scatter(part, input, {}, "test")->wait();
    EXPECT_EQ(part.item<float>(), 1.0F + 1.0F / 128);
  });
}

TEST(ChannelTest, CountersFollowTheRingConvention) {
  run_ranks(4, [](const ShardChannels& channels) {
    Channel& channel = *channels.gather;
    channel.all_gather(at::zeros({8}), at::zeros({2}), "test")->wait();
    EXPECT_EQ(channel.traffic(Collective::kAllGather).calls, 1);
    EXPECT_DOUBLE_EQ(channel.traffic(Collective::kAllGather).elements, 6.0);
    EXPECT_DOUBLE_EQ(channel.traffic(Collective::kAllGather).bytes, 24.0);
    channel.all_reduce(at::zeros({8}), 1.0, "test")->wait();
    EXPECT_DOUBLE_EQ(channel.traffic(Collective::kAllReduce).elements, 12.0);
    // Each rank has 4 elements of the 16, one of them for itself.
    const std::vector<at::Tensor> parts(4, at::zeros({1}));
    channel.all_to_all({4, at::zeros({1})}, parts, 16, "test")->wait();
    EXPECT_DOUBLE_EQ(channel.traffic(Collective::kAllToAll).elements, 3.0);
    EXPECT_DOUBLE_EQ(channel.traffic(Collective::kAllToAll).bytes, 12.0);
    channel.reset_traffic();
    EXPECT_EQ(channel.traffic(Collective::kAllReduce).calls, 0);
  });
}

TEST(ChannelTest, HooksSeeEveryCollectiveUntilRemoved) {
  Channel channel(make_single_transport(), "test");
  std::vector<std::string> seen;
  HookHandle handle = channel.add_hook(
      {.before_launch =
           [&](const CollectiveEvent& e) { seen.push_back("launch " + std::string(e.who)); },
       .after_wait = [&](const CollectiveEvent& e,
                         const Finished&) { seen.push_back("done " + std::string(e.who)); }});
  channel.all_gather(at::zeros({2}), at::zeros({2}), "block 1")->wait();
  EXPECT_EQ(seen, (std::vector<std::string>{"launch block 1", "done block 1"}));
  handle.remove();
  channel.all_gather(at::zeros({2}), at::zeros({2}), "block 2")->wait();
  EXPECT_EQ(seen.size(), 2U);
}

TEST(ChannelTest, ARankThatStaysAwayIsAnErrorThatNamesUnitAndCollective) {
  try {
    run_ranks(
        2,
        [](const ShardChannels& channels) {
          if (channels.gather->rank() == 0) {
            channels.gather->all_gather(at::zeros({4}), at::zeros({2}), "block 7")->wait();
          }
        },
        std::chrono::milliseconds(100));
    FAIL() << "no error";
  } catch (const CommunicationError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("rank 0 of 2: all_gather for block 7"), std::string::npos) << message;
  }
}

TEST(ChannelTest, DifferentCollectivesAreAnError) {
  EXPECT_THROW(run_ranks(2,
                         [](const ShardChannels& channels) {
                           Channel& channel = *channels.gather;
                           if (channel.rank() == 0) {
                             channel.all_gather(at::zeros({4}), at::zeros({2}), "a")->wait();
                           } else {
                             channel.broadcast(at::zeros({2}), 0, "b")->wait();
                           }
                         }),
               CommunicationError);
}

// The first that sees the difference leaves at once, and the others still learn of it.
TEST(ChannelTest, DifferentCollectivesOverGlooAreToldOnEveryRank) {
  if (!has_native_gloo()) {
    GTEST_SKIP() << "built without Gloo's headers";
  }
  const auto different = [](Channel& channel) {
    if (channel.rank() == 0) {
      channel.all_gather(at::zeros({6}), at::zeros({6 / channel.size()}), "a")->wait();
    } else {
      channel.broadcast(at::zeros({2}), 0, "b")->wait();
    }
  };
  for (int round = 0; round < 10; ++round) {
    run_gloo_ranks(2 + round % 2, [&](Channel& channel) {
      try {
        different(channel);
        ADD_FAILURE() << "no error on rank " << channel.rank();
      } catch (const CommunicationError& error) {
        EXPECT_NE(std::string(error.what()).find("the ranks do different things"),
                  std::string::npos)
            << error.what();
      }
    });
  }
}

}  // namespace
}  // namespace shardwise::comm
