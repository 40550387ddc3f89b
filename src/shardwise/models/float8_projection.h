// Projections whose products are carried out in fp8.
#pragma once

#include <ATen/core/Tensor.h>

#include "shardwise/models/projection.h"
#include "shardwise/ops/float8.h"

namespace shardwise::models {

// As Projection::forward. `recorded`: with a node in autograd's graph.
at::Tensor float8_projected(const Result& x, const ProjectionWeights& weights,
                            ops::Float8Recipe recipe, bool recorded);

}  // namespace shardwise::models
