#include "shardwise/precision/fp8.h"

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/ops/float8.h"

namespace shardwise::precision {

void check_fp8_device(const config::Config& config, c10::Device device) {
  SW_USER_CHECK(ConfigError, config.own.fp8 == "off" || ops::has_float8_products(device),
                "shardwise.fp8: \"", config.own.fp8,
                "\" needs a GPU of compute capability 8.9 or "
                "newer (Ada, Hopper), which ",
                device, " is not; set it to \"off\"");
}

std::string describe_fp8(const std::string& setting, const std::vector<std::string>& matrices) {
  constexpr std::size_t kNamed = 4;
  const std::string line =
      concat("shardwise.fp8: the products of blocks with their weights run in fp8 (", setting, ")");
  if (matrices.empty()) {
    return line;
  }
  std::string names;
  for (std::size_t i = 0; i < std::min(matrices.size(), kNamed); ++i) {
    names += (i == 0 ? "" : ", ") + matrices[i];
  }
  const std::size_t more = matrices.size() - std::min(matrices.size(), kNamed);
  return concat(line, "; those with ", names,
                more > 0 ? concat(" and ", more, " more matrices") : "",
                " stay in bf16: their sizes are no multiples of ", ops::kFloat8Multiple);
}

}  // namespace shardwise::precision
