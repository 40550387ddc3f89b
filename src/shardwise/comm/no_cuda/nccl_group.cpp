#include "shardwise/comm/nccl/nccl_group.h"

#include "shardwise/base/check.h"

namespace shardwise::comm {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>&, int,
                                                    int, at::Device, std::chrono::milliseconds,
                                                    int) {
  SW_FAIL(CommunicationError,
          "this build has no CUDA: build where nvcc is found, or set DS_ACCELERATOR=cpu");
}

}  // namespace shardwise::comm
