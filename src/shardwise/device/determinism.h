// One setting that makes runs of one configuration give the same bits.
#pragma once

#include <c10/core/Device.h>

namespace shardwise::device {

// From here on torch refuses operations that have no deterministic implementation, attention leaves
// cuDNN, and libraries that are not in use yet choose fixed algorithms: cuBLAS by its workspace
// (CUBLAS_WORKSPACE_CONFIG), NCCL by ring and simple protocol (NCCL_ALGO, NCCL_PROTO); variables
// that are set already stay. Acts on the whole process, so call it before communicators are made.
void make_deterministic(c10::Device device);

}  // namespace shardwise::device
