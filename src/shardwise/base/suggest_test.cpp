#include "shardwise/base/suggest.h"

#include <gtest/gtest.h>

namespace shardwise {
namespace {

TEST(Suggest, EditDistanceOfKnownPairs) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("stage", "stgae"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("stge", "stage"), 1);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);  // optimal string alignment, not full Damerau
}

TEST(Suggest, NearestIsSortedAndShort) {
  const std::vector<std::string> names = {"stage", "stages", "age", "usage", "stag", "storage"};
  const auto near = nearest("stagee", names);
  ASSERT_FALSE(near.empty());
  EXPECT_LE(near.size(), 3U);
  EXPECT_TRUE(near[0] == "stage" || near[0] == "stages");
  EXPECT_TRUE(nearest("something_else", names).empty());
  EXPECT_EQ(nearest("STAGE", names)[0], "stage");
}

TEST(Suggest, LongNamesAreNotCompared) {
  const std::string text(1'000'000, 'x');
  EXPECT_TRUE(nearest(text, {text}).empty());
  EXPECT_TRUE(nearest("x", {text}).empty());
}

}  // namespace
}  // namespace shardwise
