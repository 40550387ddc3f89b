#include "shardwise/ops/attention.h"

namespace shardwise::ops {

bool prefers_cudnn(const at::Tensor&, const at::Tensor&, const at::Tensor&, double) {
  return false;
}

bool takes_flash(const at::Tensor&) { return false; }

}  // namespace shardwise::ops
