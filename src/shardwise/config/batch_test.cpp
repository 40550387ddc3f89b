#include "shardwise/config/batch.h"

#include <gtest/gtest.h>

#include <limits>

namespace shardwise::config {
namespace {

BatchSolution solve(std::int64_t train, std::int64_t micro, std::int64_t steps,
                    std::int64_t world) {
  return solve_batch({{train, micro, steps}, "user", "user", "user", world, "WORLD_SIZE"});
}

void expect_batch(const BatchSolution& solution, std::int64_t train, std::int64_t micro,
                  std::int64_t steps) {
  EXPECT_EQ(solution.problem, "");
  EXPECT_EQ(solution.batch.train_batch_size, train);
  EXPECT_EQ(solution.batch.train_micro_batch_size_per_gpu, micro);
  EXPECT_EQ(solution.batch.gradient_accumulation_steps, steps);
}

TEST(Batch, SolvesWhateverIsMissing) {
  expect_batch(solve(48, 4, 3, 4), 48, 4, 3);
  expect_batch(solve(48, 4, 0, 4), 48, 4, 3);
  expect_batch(solve(48, 0, 3, 4), 48, 4, 3);
  expect_batch(solve(0, 4, 3, 4), 48, 4, 3);
  expect_batch(solve(48, 0, 0, 4), 48, 12, 1);
  expect_batch(solve(0, 4, 0, 4), 16, 4, 1);
}

TEST(Batch, EverySubsetOfARightTripleGivesItBack) {
  for (std::int64_t world = 1; world <= 5; ++world) {
    for (std::int64_t micro = 1; micro <= 4; ++micro) {
      for (std::int64_t steps = 1; steps <= 4; ++steps) {
        const std::int64_t train = micro * steps * world;
        expect_batch(solve(train, micro, steps, world), train, micro, steps);
        expect_batch(solve(train, micro, 0, world), train, micro, steps);
        expect_batch(solve(train, 0, steps, world), train, micro, steps);
        expect_batch(solve(0, micro, steps, world), train, micro, steps);
        expect_batch(solve(train, 0, 0, world), train, micro * steps, 1);
      }
    }
  }
}

TEST(Batch, SaysWhereSolvedNumbersComeFrom) {
  EXPECT_EQ(solve(48, 4, 0, 4).steps_origin,
            "derived from train_batch_size, train_micro_batch_size_per_gpu and world size");
  EXPECT_EQ(solve(48, 0, 0, 4).micro_origin, "derived from train_batch_size and world size");
  EXPECT_EQ(solve(48, 0, 0, 4).steps_origin, "default");
  EXPECT_EQ(solve(48, 0, 0, 4).train_origin, "user");
}

TEST(Batch, ExplainsAContradictionWithItsNumbers) {
  EXPECT_EQ(solve(32, 4, 4, 4).problem,
            "train_batch_size 32 (user) does not fit train_micro_batch_size_per_gpu 4 (user) x "
            "gradient_accumulation_steps 4 (user) x world size 4 (WORLD_SIZE) = 64; write "
            "train_batch_size 64 or leave one of the three out");
}

TEST(Batch, ExplainsWhatDoesNotDivide) {
  EXPECT_EQ(solve(33, 0, 0, 4).problem,
            "train_batch_size 33 (user) is not a multiple of world size 4 (WORLD_SIZE); write 32 "
            "or 36");
  EXPECT_EQ(solve(30, 4, 0, 4).problem,
            "train_batch_size 30 (user) is not a multiple of train_micro_batch_size_per_gpu 4 "
            "(user) x world size 4 (WORLD_SIZE) = 16; write 16 or 32");
  EXPECT_EQ(solve(2, 0, 0, 4).problem,
            "train_batch_size 2 (user) is not a multiple of world size 4 (WORLD_SIZE); write 4");
}

TEST(Batch, ExplainsWhatToAdd) {
  EXPECT_NE(solve(0, 0, 0, 2).problem.find("no batch size is given; add"), std::string::npos);
  EXPECT_NE(solve(0, 0, 4, 2).problem.find("only gradient_accumulation_steps 4 (user) is given"),
            std::string::npos);
}

TEST(Batch, DoesNotOverflow) {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(solve(0, huge, 2, 2).problem.find("64 bits"), std::string::npos);
  EXPECT_NE(solve(5, huge, 0, 2).problem.find("64 bits"), std::string::npos);
  EXPECT_NE(solve(5, huge, huge, 2).problem.find("64 bits"), std::string::npos);
  EXPECT_EQ(solve(huge, 0, 0, 2).problem,
            "train_batch_size 9223372036854775807 (user) is not a multiple of world size 2 "
            "(WORLD_SIZE); write 9223372036854775806");
  expect_batch(solve(huge, 0, 0, 1), huge, huge, 1);
}

}  // namespace
}  // namespace shardwise::config
