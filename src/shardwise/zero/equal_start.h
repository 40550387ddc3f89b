// Ranks start equal: the same parameters by name, shape and dtype, and the same values.
#pragma once

#include <string>
#include <vector>

#include "shardwise/comm/channel.h"
#include "shardwise/params/unit.h"

namespace shardwise::zero {

// Throws UsageError on every rank if the text differs from rank 0's on any, with the first line
// that does. `what` says what the text is ("settings"), `remedy` what to do. Collective.
void check_same_text(comm::Channel& channel, const std::string& text, const std::string& what,
                     const std::string& remedy, at::Device device);

// Throws UsageError on every rank if any rank lists other parameters than rank 0, with the first
// difference. Collective.
void check_same_parameters(comm::Channel& channel, const std::vector<params::UnitSpec>& specs,
                           at::Device device);

// Gives a segment's flat values of rank 0 to everybody. The first parameter whose values differed
// on this rank is named in one warning per object. Collective.
class ValueBroadcast {
 public:
  explicit ValueBroadcast(comm::Channel& channel) : channel_(channel) {}
  void operator()(const params::Segment& segment, const at::Tensor& flat);

 private:
  comm::Channel& channel_;
  bool warned_ = false;
};

}  // namespace shardwise::zero
