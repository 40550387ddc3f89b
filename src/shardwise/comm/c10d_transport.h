// Transports over torch's process groups.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <memory>

#include "shardwise/comm/transport.h"

namespace shardwise::comm {

// CPU tensors over any backend with tagged point-to-point messages (Gloo); see
// Note [Collectives over Gloo].
std::unique_ptr<Transport> make_cpu_transport(c10::intrusive_ptr<c10d::Backend> backend,
                                              std::chrono::milliseconds timeout);

// CUDA tensors over NCCL, on a stream of its own. Collectives wait for the current stream at
// launch.
std::unique_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Backend> backend,
                                               at::Device device,
                                               std::chrono::milliseconds timeout);

}  // namespace shardwise::comm
