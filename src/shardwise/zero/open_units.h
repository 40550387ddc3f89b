// Units that a user holds open outside of steps, and what becomes of changes to their parameters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shardwise/comm/mesh.h"
#include "shardwise/params/registry.h"
#include "shardwise/zero/access_levels.h"
#include "shardwise/zero/agreement.h"
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
  // on that rank. Throws UsageError where another rank is its modifier already, or where any rank
  // changed it since it was opened for reading.
  void open(int unit, int modifier);
  // What the modifier changed, or assigned to `.data`, becomes everybody's: parameters, shards, and
  // fp32 masters of the elements that differ. `discard`: after an error on this rank, which waits
  // for nobody. Throws UsageError on all ranks where one found a change that nobody was named for,
  // or where an error, another modifier or another shape on one forbids the change. Then, and after
  // an error, the modifier's parameters are again what they were when the unit was opened.
  // Closing a unit that is not sharded, without a modifier, is not collective: only the ranks that
  // find a change throw, and a rank that has a modifier while others have none waits for them until
  // its time-out.
  void close(int unit, bool discard, ShardedOptimizer* optimizer);

 private:
  // What one open() made note of.
  struct Opening {
    // Copies in host memory for the modifier of a whole unit; a sharded one has its shards.
    std::vector<at::Tensor> values;
  };
  std::optional<Objection> objection_to(const params::Unit& unit, Finding mine);
  Finding reattach(const params::Unit& unit, Finding finding) const;
  void put_back(const params::Unit& unit, const Opening& opening);
  std::string explain(const params::Unit& unit, const Objection& objection) const;
  void share(const params::Unit& unit, int modifier, ShardedOptimizer* optimizer);

  const params::Registry& registry_;
  Gatherer& gatherer_;
  comm::ShardChannels channels_;
  ZeroPlan plan_;
  std::vector<AccessLevels> levels_;            // by unit
  std::vector<std::vector<Opening>> openings_;  // by unit, outermost first
  Agreement agreement_;
};

}  // namespace shardwise::zero
