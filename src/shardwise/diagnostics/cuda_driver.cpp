#include "shardwise/diagnostics/cuda_driver.h"

#include <dlfcn.h>

#include "shardwise/base/check.h"

namespace shardwise::diagnostics {
namespace {

// From the driver API's reference: the result 0 is success; these numbers name attributes.
constexpr int kAttributeMajor = 75;
constexpr int kAttributeMinor = 76;
constexpr int kErrorNoDevice = 100;

// The few functions of the driver that the report calls.
class DriverLibrary {
 public:
  DriverLibrary() : library_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {}
  bool found() const { return library_ != nullptr; }

  // Calls a function that returns a result code; -1 where the driver does not have it.
  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(library_, name));
    return function == nullptr ? -1 : function(arguments...);
  }

 private:
  void* library_;  // stays open: a driver cannot be unloaded safely
};

CudaDevice query_device(const DriverLibrary& driver, int index) {
  CudaDevice device;
  int handle = 0;
  char name[256] = "";
  int major = 0;
  int minor = 0;
  driver.call("cuDeviceGet", &handle, index);
  driver.call("cuDeviceGetName", static_cast<char*>(name), static_cast<int>(sizeof(name)), handle);
  driver.call("cuDeviceTotalMem_v2", &device.bytes, handle);
  driver.call("cuDeviceGetAttribute", &major, kAttributeMajor, handle);
  driver.call("cuDeviceGetAttribute", &minor, kAttributeMinor, handle);
  device.name = name;
  device.capability = 10 * major + minor;
  return device;
}

}  // namespace

CudaDriver query_cuda_driver() {
  CudaDriver result;
  const DriverLibrary driver;
  if (!driver.found()) {
    result.problem = "no NVIDIA driver (libcuda.so.1 is not there)";
    return result;
  }
  driver.call("cuDriverGetVersion", &result.version);
  const int code = driver.call("cuInit", 0U);
  if (code != 0) {
    result.problem = code == kErrorNoDevice
                         ? "the driver sees no device"
                         : concat("the driver does not start (error ", code, ")");
    return result;
  }
  int count = 0;
  driver.call("cuDeviceGetCount", &count);
  for (int index = 0; index < count; ++index) result.devices.push_back(query_device(driver, index));
  return result;
}

std::string cuda_version_text(int version) {
  return concat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace shardwise::diagnostics
