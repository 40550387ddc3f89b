// Gloo process groups made without Python.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace shardwise::comm {

// Whether this build can make Gloo groups itself (Gloo's headers were there).
bool has_native_gloo();

// A Gloo group of `size` ranks that meet in `store`. Two groups need stores with different
// prefixes. Throws CommunicationError without native Gloo, or when the ranks do not meet within
// `timeout`.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout);

}  // namespace shardwise::comm
