#include "shardwise/params/layout.h"

#include <gtest/gtest.h>

namespace shardwise::params {
namespace {

TEST(LayoutTest, ParametersAreAlignedAndTheWholeIsPaddedToTheWorld) {
  const SegmentLayout layout = lay_out({5, 0, 33}, /*element_bytes=*/4, /*world_size=*/3);
  // 128 bytes are 32 elements: 5 -> 32, 0 -> 0, 33 -> 64, together 96 = 3 × 32.
  EXPECT_EQ(layout.places, (std::vector<Range>{{0, 5}, {32, 32}, {32, 65}}));
  EXPECT_EQ(layout.numel, 96);
  EXPECT_EQ(layout.shard_numel, 32);
  EXPECT_EQ(layout.payload, 38);
  EXPECT_EQ(layout.shard_of(2), (Range{64, 96}));
}

TEST(LayoutTest, ShardsCoverTheSegmentOnceForEveryWorldSize) {
  for (int world = 1; world <= 9; ++world) {
    const SegmentLayout layout = lay_out({1, 1000, 64, 7}, 2, world);
    std::int64_t covered = 0;
    for (int rank = 0; rank < world; ++rank) {
      EXPECT_EQ(layout.shard_of(rank).begin, covered);
      covered += layout.shard_of(rank).size();
    }
    EXPECT_EQ(covered, layout.numel);
    EXPECT_EQ(layout.shard_numel * 2 % kAlignmentBytes, 0);
  }
}

TEST(LayoutTest, NothingTakesNoSpace) { EXPECT_EQ(lay_out({0, 0}, 4, 4).numel, 0); }

TEST(LayoutTest, IntersectionOfDisjointRangesIsEmpty) {
  EXPECT_EQ(intersect({0, 4}, {8, 9}).size(), 0);
  EXPECT_EQ(intersect({0, 10}, {4, 6}), (Range{4, 6}));
}

}  // namespace
}  // namespace shardwise::params
