#include "shardwise/zero/order.h"

#include <gtest/gtest.h>

namespace shardwise::zero {
namespace {

std::vector<int> ahead(const AcquireOrder& order) {
  const auto units = order.ahead();
  return {units.begin(), units.end()};
}

void pass(AcquireOrder& order, const std::vector<int>& units) {
  for (const int unit : units) {
    order.advance(unit);
  }
}

TEST(AcquireOrderTest, TheSecondPassKnowsWhatComes) {
  AcquireOrder order;
  order.begin(true);
  EXPECT_TRUE(ahead(order).empty());
  pass(order, {3, 0, 1, 1, 0});
  order.begin(true);
  EXPECT_EQ(ahead(order), (std::vector<int>{3, 0, 1, 1, 0}));
  order.advance(3);
  EXPECT_EQ(ahead(order), (std::vector<int>{0, 1, 1, 0}));
}

TEST(AcquireOrderTest, AnotherOrderIsFollowedOnDemandAndThenRecorded) {
  AcquireOrder order;
  order.begin(true);
  pass(order, {0, 1, 2});
  order.begin(true);
  pass(order, {0, 2});
  EXPECT_TRUE(ahead(order).empty());
  pass(order, {1});
  EXPECT_TRUE(order.begin(true));
  EXPECT_EQ(ahead(order), (std::vector<int>{0, 2, 1}));
  pass(order, {0, 2, 1});
  EXPECT_FALSE(order.begin(true));
}

TEST(AcquireOrderTest, EvaluationHasARecordOfItsOwnAndAnUnfinishedPassChangesNothing) {
  AcquireOrder order;
  order.begin(true);
  pass(order, {0, 1, 1, 0});
  order.begin(false);
  pass(order, {0, 1});
  EXPECT_FALSE(order.begin(true));
  EXPECT_EQ(ahead(order), (std::vector<int>{0, 1, 1, 0}));
  order.advance(0);  // forward without backward
  EXPECT_FALSE(order.begin(true));
  EXPECT_EQ(ahead(order), (std::vector<int>{0, 1, 1, 0}));
}

TEST(OrderHashTest, OrderUnitAndCollectiveMatter) {
  using comm::Collective;
  const auto hash = [](std::vector<std::pair<Collective, int>> operations) {
    OrderHash order;
    for (const auto& [collective, unit] : operations) {
      order.add(collective, unit);
    }
    return order.value();
  };
  const auto base = hash({{Collective::kAllGather, 0}, {Collective::kAllGather, 1}});
  EXPECT_EQ(base, hash({{Collective::kAllGather, 0}, {Collective::kAllGather, 1}}));
  EXPECT_NE(base, hash({{Collective::kAllGather, 1}, {Collective::kAllGather, 0}}));
  EXPECT_NE(base, hash({{Collective::kAllGather, 0}, {Collective::kReduceScatter, 1}}));
  EXPECT_NE(base, hash({{Collective::kAllGather, 0}}));
}

}  // namespace
}  // namespace shardwise::zero
