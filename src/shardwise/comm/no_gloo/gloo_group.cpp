#include "shardwise/comm/gloo/gloo_group.h"

#include "shardwise/base/check.h"

namespace shardwise::comm {

bool has_native_gloo() { return false; }

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>&, int,
                                                    int, std::chrono::milliseconds) {
  SW_FAIL(CommunicationError,
          "this build has no native Gloo: install Gloo's headers "
          "(libgloo-dev) and build again, or start through Python");
}

}  // namespace shardwise::comm
