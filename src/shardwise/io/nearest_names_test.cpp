#include "shardwise/io/nearest_names.h"

#include <gtest/gtest.h>

#include <string>

namespace shardwise::io {
namespace {

using Names = std::vector<std::string_view>;

TEST(NearestNames, ByNumberOfChanges) {
  const Names names = {"sitting", "kitchen", "kitten", "mitten", "bitte", "dog"};
  EXPECT_EQ(nearest_names("kitten", names), (Names{"kitten", "mitten", "bitte"}));
  // kitten to sitting takes three, of seven characters.
  EXPECT_EQ(nearest_names("kitten", {"sitting"}), Names{"sitting"});
  EXPECT_EQ(nearest_names("kitten", {"xxxxxx"}), Names{});
  EXPECT_EQ(nearest_names("", {"a"}), Names{});
}

TEST(NearestNames, LongNamesArePassedOver) {
  const std::string text(1'000'000, 'x');
  EXPECT_EQ(nearest_names(text, {text}), Names{});
}

}  // namespace
}  // namespace shardwise::io
