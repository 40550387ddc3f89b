#include "shardwise/device/determinism.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace shardwise::device {

void make_deterministic(c10::Device device) {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(/*b=*/true, /*warn_only=*/false);
  if (device.is_cpu()) {
    return;
  }
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setSDPUseCuDNN(false);
  const int keep = 0;
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", keep);
  setenv("NCCL_ALGO", "Ring", keep);
  setenv("NCCL_PROTO", "Simple", keep);
}

}  // namespace shardwise::device
