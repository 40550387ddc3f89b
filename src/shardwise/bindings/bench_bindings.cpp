#include <ATen/ATen.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/bench/kernel_bench.h"
#include "shardwise/bindings/registrations.h"
#include "shardwise/kernels/dispatch.h"

namespace py = pybind11;

namespace shardwise::bindings {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

std::vector<std::string> cpu_levels() {
  std::vector<std::string> names;
  for (const kernels::CpuLevel level : kernels::available_cpu_levels()) {
    names.emplace_back(kernels::cpu_level_name(level));
  }
  return names;
}

kernels::CpuLevel cpu_level(const std::string& name) {
  for (const kernels::CpuLevel level : kernels::available_cpu_levels()) {
    if (name == kernels::cpu_level_name(level)) {
      return level;
    }
  }
  SW_FAIL(UsageError, "this machine has no CPU kernels ", name);
}

std::vector<bench::KernelTime> time_kernels(at::Device device, std::int64_t tokens,
                                            std::int64_t vocabulary, std::int64_t elements,
                                            const std::string& level) {
  return bench::time_kernels({.device = device,
                              .tokens = tokens,
                              .vocabulary = vocabulary,
                              .elements = elements,
                              .cpu_level = cpu_level(level)});
}

}  // namespace

void register_bench(py::module_& module) {
  py::class_<bench::KernelTime>(module, "KernelTime", "See bench/kernel_bench.h.")
      .def_readonly("name", &bench::KernelTime::name)
      .def_readonly("microseconds", &bench::KernelTime::microseconds)
      .def_readonly("bytes", &bench::KernelTime::bytes)
      .def_readonly("of_copy", &bench::KernelTime::of_copy);
  module.def("cpu_levels", &cpu_levels,
             "Instruction sets of the CPU kernels that this machine has, the best one last.");
  module.def("time_kernels", &time_kernels, py::arg("device"), py::arg("tokens"),
             py::arg("vocabulary"), py::arg("elements"), py::arg("cpu_level"), Unlocked());
}

}  // namespace shardwise::bindings
