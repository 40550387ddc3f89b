// Units that a user holds open outside of steps, and what becomes of changes to their parameters.
#pragma once

#include <string>
#include <vector>

#include "shardwise/comm/mesh.h"
#include "shardwise/params/registry.h"
#include "shardwise/zero/access_levels.h"
#include "shardwise/zero/gatherer.h"
#include "shardwise/zero/plan.h"
#include "shardwise/zero/sharded_optimizer.h"

namespace shardwise::zero {

// As many times open as wanted, closed in reverse order. Everything is collective.
class OpenUnits {
 public:
  OpenUnits(const params::Registry& registry, Gatherer& gatherer,
            const comm::ShardChannels& channels, ZeroPlan plan);

  // The unit's parameters are readable until close(). With a rank as `modifier` they may be changed
  // on that rank. Throws UsageError where another rank is its modifier already, or where it was
  // changed since it was opened for reading.
  void open(int unit, int modifier);
  // What the modifier changed becomes everybody's: parameters, shards, and fp32 masters of the
  // elements that differ. `discard`: after an error, nothing is looked at. Throws UsageError on the
  // ranks that find a change nobody was named for; in sharded units it is lost.
  void close(int unit, bool discard, ShardedOptimizer* optimizer);

 private:
  std::string complaint_about(const params::Unit& unit) const;
  void share(const params::Unit& unit, int modifier, ShardedOptimizer* optimizer);

  const params::Registry& registry_;
  Gatherer& gatherer_;
  comm::ShardChannels channels_;
  ZeroPlan plan_;
  std::vector<AccessLevels> levels_;  // by unit
};

}  // namespace shardwise::zero
