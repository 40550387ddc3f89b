#include "shardwise/diagnostics/environment_report.h"

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>

#include "shardwise/base/check.h"
#include "shardwise/comm/gloo/gloo_group.h"
#include "shardwise/diagnostics/cuda_driver.h"
#include "shardwise/kernels/dispatch.h"

namespace shardwise::diagnostics {
namespace {

std::string line(const std::string& name, const std::string& value) {
  constexpr std::size_t kWidth = 18;  // as the program's own lines
  return name + std::string(name.size() < kWidth ? kWidth - name.size() : 1, ' ') + value + "\n";
}

// The file that a function was loaded from.
std::string origin(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "unknown";
  return std::filesystem::path(info.dli_fname).lexically_normal().string();
}

std::string torch_lines() {
  return line("torch", concat(TORCH_VERSION, ", ",
                              origin(reinterpret_cast<const void*>(&at::get_num_threads)))) +
         line("torch threads", concat(at::get_num_threads()));
}

std::string torch_cuda() {
  const auto& hooks = at::detail::getCUDAHooks();
  if (!hooks.hasCUDART()) return "torch is built without CUDA";
  std::string text = concat("torch is built with CUDA ",
                            cuda_version_text(static_cast<int>(hooks.versionCUDART())));
  if (hooks.hasCuDNN()) text += concat(", cuDNN ", hooks.versionCuDNN());
  return text;
}

std::string cuda_lines() {
  const CudaDriver driver = query_cuda_driver();
  std::string text = line("CUDA", torch_cuda());
  std::string state = driver.problem;
  if (driver.version > 0) {
    state = concat("runs CUDA up to ", cuda_version_text(driver.version), state.empty() ? "" : "; ",
                   state);
  }
  text += line("CUDA driver", state);
  for (std::size_t i = 0; i < driver.devices.size(); ++i) {
    const CudaDevice& device = driver.devices[i];
    text += line(concat("CUDA device ", i),
                 concat(device.name, ", ", device.bytes >> 20, " MiB, compute capability ",
                        device.capability / 10, ".", device.capability % 10));
  }
  return text;
}

// torch loads NCCL with its CUDA part; the library is asked, because it may have been replaced.
std::string nccl_version() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  const auto get = library == nullptr
                       ? nullptr
                       : reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  int code = 0;
  if (get == nullptr || get(&code) != 0) return "not loaded";
  return concat(code / 10000, ".", code % 10000 / 100, ".", code % 100, ", ",
                origin(reinterpret_cast<const void*>(get)));
}

std::string cuda_kernels() {
  std::string text;
  for (const int architecture : kernels::cuda_architectures()) {
    text += concat(text.empty() ? "compute capability " : ", ", architecture / 10, ".",
                   architecture % 10);
  }
  return text.empty() ? "not built" : text;
}

std::string cpu_kernels() {
  std::string others;
  for (const auto level : kernels::available_cpu_levels()) {
    others += concat(others.empty() ? "" : ", ", kernels::cpu_level_name(level));
  }
  return concat(kernels::cpu_dispatch_level(), " (available: ", others, ")");
}

}  // namespace

std::string environment_report() {
  return torch_lines() + cuda_lines() + line("NCCL", nccl_version()) +
         line("Gloo", comm::has_native_gloo()
                          ? "from Python and from native programs"
                          : "from Python only; for native programs build with Gloo's headers "
                            "(Debian: libgloo-dev)") +
         line("kernels, CPU", cpu_kernels()) + line("kernels, CUDA", cuda_kernels());
}

}  // namespace shardwise::diagnostics

extern "C" int shardwise_environment_report(char* buffer, std::size_t size) {
  try {
    const std::string text = shardwise::diagnostics::environment_report();
    if (size > 0) {
      const std::size_t length = std::min(text.size(), size - 1);
      std::memcpy(buffer, text.data(), length);
      buffer[length] = '\0';
    }
    return static_cast<int>(text.size());
  } catch (const std::exception&) {
    return -1;
  }
}
