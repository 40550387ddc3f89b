// NCCL process groups made without Python.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace shardwise::comm {

// An NCCL group of `size` ranks that meet in `store`; this rank computes on `device`. Two groups
// need stores with different prefixes. The communicator is made at the first collective. Throws
// CommunicationError in builds without CUDA. `max_ctas`: of a collective; 0: NCCL decides.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size, at::Device device,
                                                    std::chrono::milliseconds timeout,
                                                    int max_ctas);

}  // namespace shardwise::comm
