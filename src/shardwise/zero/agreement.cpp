#include "shardwise/zero/agreement.h"

#include <exception>

#include "shardwise/base/check.h"

namespace shardwise::zero {
namespace {

constexpr const char* kPurpose =
    "the end of GatheredParameters, which takes the same modifier_rank on every rank";

}  // namespace

Finding finding_of(const std::optional<AccessLevels::Change>& change, int modifier) {
  Finding finding;
  finding.modifier = modifier;
  if (change) {
    finding.changed = 1;
    finding.flat = static_cast<std::int64_t>(change->flat);
    finding.byte = change->byte;
  }
  return finding;
}

std::optional<Objection> Agreement::objection(comm::Channel& channel, const Finding& mine,
                                              at::Device device) {
  for (RecordExchange<Finding>& exchange : left_) {
    exchange.read();
  }
  left_.clear();
  const std::vector<Finding> all =
      channel.size() == 1 ? std::vector{mine}
                          : RecordExchange<Finding>(channel, mine, device, kPurpose).read();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Finding& finding = all[rank];
    // Where nobody's changes count, an error on one rank is nothing to the others.
    const bool left = finding.left_by_error != 0 && mine.modifier != kReadOnly;
    if (finding.changed != 0 || finding.reshaped != 0 || left ||
        finding.modifier != all[0].modifier) {
      return Objection{static_cast<int>(rank), finding, all[0].modifier};
    }
  }
  return std::nullopt;
}

void Agreement::leave(comm::Channel& channel, int modifier, at::Device device) {
  if (channel.size() == 1 || channel.failed()) {
    return;
  }
  Finding finding = finding_of(std::nullopt, modifier);
  finding.left_by_error = 1;
  try {
    left_.emplace_back(channel, finding, device, kPurpose);
  } catch (const std::exception&) {
    // The error that is under way says more.
  }
}

std::string in_words(const Objection& objection, const std::string& what,
                     const std::string& consequence) {
  const Finding& finding = objection.finding;
  if (finding.changed != 0) {
    return concat(
        what, " was changed on rank ", objection.rank,
        " inside GatheredParameters without modifier_rank; ", consequence,
        ". Say whose changes count: GatheredParameters(params, modifier_rank=0), and make "
        "them on that rank.");
  }
  if (finding.reshaped != 0) {
    return concat(what, " was given data of another shape on rank ", objection.rank,
                  " inside GatheredParameters, so that nothing was changed in its unit: parameters "
                  "of an engine keep their shapes. Resize the module before initialize().");
  }
  if (finding.left_by_error != 0) {
    return concat("an error ended GatheredParameters(modifier_rank=", objection.modifier,
                  ") on rank ", objection.rank, ", so that nothing was changed in ", what,
                  ": see that rank's error");
  }
  return concat("GatheredParameters(modifier_rank=) was ", finding.modifier, " on rank ",
                objection.rank, " but ", objection.modifier, " on rank 0 (", kReadOnly,
                " means None), so that nothing was changed in ", what,
                ": give the same on every rank");
}

}  // namespace shardwise::zero
