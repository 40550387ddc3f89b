#include "shardwise/config/suggest.h"

#include <gtest/gtest.h>

namespace shardwise::config {
namespace {

std::string advise(const std::string& section, const std::string& key) {
  return advice(*schema().find(section), key);
}

TEST(Suggest, SameSectionFirst) {
  EXPECT_EQ(advise("zero_optimization", "stge"), "did you mean stage?");
  EXPECT_EQ(advise("", "gradient_accumulation_step"), "did you mean gradient_accumulation_steps?");
  EXPECT_EQ(advise("", "gradient-clipping"), "did you mean gradient_clipping?");
}

TEST(Suggest, SaysWhereAMisplacedKeyBelongs) {
  EXPECT_EQ(advise("", "stage"), "stage belongs under zero_optimization");
  EXPECT_EQ(advise("", "lr"), "lr belongs under optimizer.params");
  EXPECT_EQ(advise("optimizer", "lr"), "lr belongs under optimizer.params");
  EXPECT_EQ(advise("zero_optimization", "gradient_clipping"),
            "gradient_clipping belongs at the top level");
  EXPECT_EQ(advise("fp16", "stage3_prefetch_bucket_size"),
            "stage3_prefetch_bucket_size belongs under zero_optimization");
}

TEST(Suggest, KnowsNamesOfOtherLibraries) {
  EXPECT_EQ(advise("optimizer.params", "learning_rate"), "did you mean lr?");
  EXPECT_EQ(advise("optimizer", "learning_rate"), "lr belongs under optimizer.params");
  EXPECT_EQ(advise("", "max_grad_norm"), "did you mean gradient_clipping?");
}

TEST(Suggest, FindsAMisspeltKeyOfAnotherSection) {
  EXPECT_EQ(advise("", "reduce_bucket_sise"), "did you mean zero_optimization.reduce_bucket_size?");
}

TEST(Suggest, DottedKeysAreToBeNested) {
  EXPECT_EQ(advise("", "fp16.enabled"), "write it nested, as enabled inside fp16");
}

TEST(Suggest, ListsKeysWhenNothingIsNear) {
  EXPECT_EQ(advise("timers", "qqqqqqqq"), "known here: throughput");
  EXPECT_NE(advise("", std::string(5000, 'q')).find(" more"), std::string::npos);
}

}  // namespace
}  // namespace shardwise::config
