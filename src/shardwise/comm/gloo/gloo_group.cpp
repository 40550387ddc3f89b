// The only file that includes Gloo's headers. torch's wheel has Gloo's code but not its headers;
// the headers come from Debian's libgloo-dev, whose declarations match for the parts used here. The
// C++ test of this module runs collectives through it.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include "shardwise/comm/gloo/gloo_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "shardwise/base/check.h"
#include "shardwise/comm/meeting_point.h"

namespace shardwise::comm {

bool has_native_gloo() { return true; }

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout) {
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    options->threads = 2;
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  } catch (const std::exception& error) {
    SW_FAIL(CommunicationError, "rank ", rank, " of ", size,
            " could not join the Gloo group: ", reason_of(error));
  }
}

}  // namespace shardwise::comm
