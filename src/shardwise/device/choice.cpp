#include "shardwise/device/choice.h"

#include <ATen/Context.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "shardwise/base/check.h"

namespace shardwise::device {

c10::Device choose_device(const std::string& accelerator, int local_rank) {
  const int count =
      accelerator == "cpu" || !at::hasCUDA() ? 0 : at::detail::getCUDAHooks().deviceCount();
  SW_USER_CHECK(ConfigError, accelerator != "cuda" || count > 0,
                "DS_ACCELERATOR is cuda but torch finds no GPU: unset it, or use cpu");
  if (count == 0) {
    return at::kCPU;
  }
  SW_USER_CHECK(UsageError, local_rank < count, "LOCAL_RANK is ", local_rank,
                " but this machine has ", count, " GPU(s): start at most ", count,
                " processes here, or set DS_ACCELERATOR=cpu");
  const c10::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank));
  c10::impl::getDeviceGuardImpl(at::kCUDA)->setDevice(device);
  return device;
}

}  // namespace shardwise::device
