// The part of `shardwise env` that needs torch.
#pragma once

#include <cstddef>
#include <string>

namespace shardwise::diagnostics {

// Lines "name  value", each with its end: torch, CUDA, devices, NCCL, Gloo, kernels.
std::string environment_report();

}  // namespace shardwise::diagnostics

// The same through a C interface, for programs that load the library at run time. Writes at most
// `size` bytes to `buffer`, with a zero at the end (none when `size` is 0), and returns the length
// of the whole text without that zero, or -1 when it could not be made.
extern "C" int shardwise_environment_report(char* buffer, std::size_t size);
