#include "shardwise/zero/accumulation_window.h"

#include <gtest/gtest.h>

#include <vector>

#include "shardwise/base/error.h"

namespace shardwise::zero {
namespace {

void micro_batch(AccumulationWindow& window) {
  window.begin_backward(LossScaledBy::kEngine);
  if (window.at_boundary()) {
    window.close();
  } else {
    window.end_micro_batch();
  }
}

TEST(AccumulationWindow, EndsAfterItsSize) {
  AccumulationWindow window({.size = 3});
  std::vector<bool> boundaries;
  for (int i = 0; i < 7; ++i) {
    boundaries.push_back(window.at_boundary());
    micro_batch(window);
  }
  EXPECT_EQ(boundaries, (std::vector<bool>{false, false, true, false, false, true, false}));
  EXPECT_EQ(window.micro_steps(), 7);
  EXPECT_EQ(window.held(), 1);
}

TEST(AccumulationWindow, ObeysTheUser) {
  AccumulationWindow window({.size = 2});
  window.force_boundary(false);
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(window.at_boundary());
    micro_batch(window);
  }
  window.force_boundary(true);
  EXPECT_TRUE(window.at_boundary());
  micro_batch(window);
  EXPECT_EQ(window.held(), 0);
  window.force_boundary(std::nullopt);
  EXPECT_FALSE(window.at_boundary());
}

TEST(AccumulationWindow, PartialWindowsAreMeansOfWhatTheyHold) {
  AccumulationWindow window({.size = 4});
  EXPECT_EQ(window.with_gradients(), 0);
  micro_batch(window);
  micro_batch(window);
  EXPECT_EQ(window.with_gradients(), 2);
  EXPECT_DOUBLE_EQ(window.partial_factor(2, 1), 2.0);
  EXPECT_DOUBLE_EQ(window.partial_factor(3, 2), 8.0 / 3.0);  // another rank holds one
  window.begin_backward(LossScaledBy::kEngine);              // a third one without step()
  EXPECT_EQ(window.with_gradients(), 3);
  window.forget_gradients();
  EXPECT_EQ(window.with_gradients(), 0);
  EXPECT_EQ(window.held(), 2);
}

TEST(AccumulationWindow, DroppedMicroBatchesDoNotCount) {
  AccumulationWindow window({.size = 4});
  for (int i = 0; i < 6; ++i) {
    micro_batch(window);
  }
  window.drop();
  EXPECT_EQ(window.micro_steps(), 4);
  EXPECT_EQ(window.held(), 0);
}

TEST(AccumulationWindow, GradientsCountByWhoScaledTheLoss) {
  AccumulationWindow window({.size = 4});
  EXPECT_FALSE(window.had_backward());
  EXPECT_EQ(window.begin_backward(LossScaledBy::kEngine), 1.0);
  EXPECT_EQ(window.begin_backward(LossScaledBy::kOtherEngine), 1.0);
  EXPECT_EQ(window.begin_backward(LossScaledBy::kUser), 0.25);
  EXPECT_TRUE(window.had_backward());
  EXPECT_FALSE(window.has_foreign_scale());
}

TEST(AccumulationWindow, LossScalingRefusesAnUnscaledLoss) {
  AccumulationWindow window({.size = 1, .loss_scaling = true});
  EXPECT_THROW(window.begin_backward(LossScaledBy::kUser), Error);
  window.note_scaled_by_hand();
  EXPECT_EQ(window.begin_backward(LossScaledBy::kUser), 1.0);
  window.close();
  EXPECT_THROW(window.begin_backward(LossScaledBy::kUser), Error);  // each micro-batch anew
  window.begin_backward(LossScaledBy::kOtherEngine);
  EXPECT_TRUE(window.has_foreign_scale());
  window.forget_gradients();
  EXPECT_FALSE(window.has_foreign_scale());
}

TEST(AccumulationWindow, TokenWeightsAreNeeded) {
  AccumulationWindow window({.size = 4, .token_weighted = true});
  EXPECT_THROW(window.begin_backward(LossScaledBy::kUser), Error);
  micro_batch(window);
  EXPECT_EQ(window.partial_factor(1, 1), 1.0);  // the boundary divides by the tokens it got
}

TEST(AccumulationWindow, ChangesSizeBetweenWindowsOnly) {
  AccumulationWindow window({.size = 2});
  micro_batch(window);
  EXPECT_THROW(window.resize(3), Error);
  window.resize(2);
  micro_batch(window);
  window.resize(3);
  EXPECT_EQ(window.size(), 3);
}

}  // namespace
}  // namespace shardwise::zero
