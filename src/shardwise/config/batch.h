// The batch triple: train_batch_size = micro-batch x accumulation steps x ranks.
#pragma once

#include <cstdint>
#include <string>

#include "shardwise/config/config.h"

namespace shardwise::config {

// What is given, 0 where nothing is, and where each number came from ("user (ds.json)").
struct BatchRequest {
  BatchConfig given;
  std::string train_origin;
  std::string micro_origin;
  std::string steps_origin;
  std::int64_t world_size = 1;
  std::string world_origin;  // may be ""
};

struct BatchSolution {
  BatchConfig batch;
  std::string train_origin;
  std::string micro_origin;
  std::string steps_origin;
  std::string problem;  // not empty: there is no solution, and why
};

BatchSolution solve_batch(const BatchRequest& request);

}  // namespace shardwise::config
