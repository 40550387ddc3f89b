#include "shardwise/ops/float8.h"

namespace shardwise::ops {

bool has_float8_products(at::Device device) { return device.is_cpu(); }

}  // namespace shardwise::ops
