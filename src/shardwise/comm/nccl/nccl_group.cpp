// The only file that includes torch's NCCL header, and through it NCCL's.
#include "shardwise/comm/nccl/nccl_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace shardwise::comm {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size, at::Device device,
                                                    std::chrono::milliseconds timeout,
                                                    int max_ctas) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  if (max_ctas > 0) {
    options->config.maxCTAs = max_ctas;
  }
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  group->setBoundDeviceId(device);
  return group;
}

}  // namespace shardwise::comm
