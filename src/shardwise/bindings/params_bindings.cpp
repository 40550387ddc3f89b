#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "shardwise/bindings/end_without_gil.h"
#include "shardwise/bindings/registrations.h"
#include "shardwise/comm/rank_group.h"
#include "shardwise/zero/early_shard.h"
#include "shardwise/zero/tensor_access.h"

namespace py = pybind11;

namespace shardwise::bindings {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using zero::TensorAccess;
using Getter = at::Tensor (TensorAccess::*)(int, const std::string&);

// None where the engine has no such tensor.
template <Getter get>
py::object tensor_or_none(TensorAccess& access, int parameter, const std::string& kind) {
  at::Tensor tensor;
  {
    const py::gil_scoped_release unlocked;
    tensor = (access.*get)(parameter, kind);
  }
  return tensor.defined() ? py::cast(tensor) : py::object(py::none());
}

// What a shard of a process group's communicates through; null is a group of one.
std::shared_ptr<comm::Channel> make_channel(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                            at::Device device, double timeout_seconds) {
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(timeout_seconds * 1000));
  const auto backend = group ? group->getBackend(device.type()) : nullptr;
  return end_without_gil(comm::make_channel(backend, device, timeout, "construction"));
}

// Collectives return when their result is there for the current stream.
void register_channel(py::module_& module) {
  constexpr const char* kWho = "Python";
  py::class_<comm::Channel, std::shared_ptr<comm::Channel>>(module, "Channel")
      .def(py::init(&make_channel), py::arg("group"), py::arg("device"), py::arg("timeout_seconds"))
      .def_property_readonly("transport", &comm::Channel::transport_name)
      .def(
          "all_gather",
          [](comm::Channel& channel, const at::Tensor& out, const at::Tensor& input) {
            channel.all_gather(out, input, kWho)->wait();
          },
          py::arg("out"), py::arg("input"), Unlocked())
      .def(
          "reduce_scatter",
          [](comm::Channel& channel, const at::Tensor& out, const at::Tensor& input) {
            channel.reduce_scatter(out, input, {}, kWho)->wait();
          },
          py::arg("out"), py::arg("input"), Unlocked())
      .def(
          "all_reduce",
          [](comm::Channel& channel, const at::Tensor& tensor) {
            channel.all_reduce(tensor, 1.0, kWho)->wait();
          },
          py::arg("tensor"), Unlocked());
}

void register_early_shards(py::module_& module) {
  py::class_<zero::EarlyShard, std::shared_ptr<zero::EarlyShard>>(module, "EarlyShard")
      .def(py::init([](std::shared_ptr<comm::Channel> channel, at::Device device,
                       const at::Tensor& parameter, at::ScalarType dtype, std::string name) {
             const py::gil_scoped_release unlocked;
             return std::make_shared<zero::EarlyShard>(std::move(channel), device, parameter, dtype,
                                                       std::move(name));
           }),
           py::arg("channel"), py::arg("device"), py::arg("parameter"), py::arg("dtype"),
           py::arg("name"), py::keep_alive<1, 2>())
      .def("open", &zero::EarlyShard::open, Unlocked())
      .def("close", &zero::EarlyShard::close, Unlocked())
      .def("is_open", &zero::EarlyShard::is_open)
      .def("holds", &zero::EarlyShard::holds)
      .def("shard_bytes", &zero::EarlyShard::shard_bytes);
}

void register_access(py::module_& module) {
  py::class_<TensorAccess>(module, "TensorAccess")
      .def("full", &tensor_or_none<&TensorAccess::full>)
      .def("set_full", &TensorAccess::set_full, Unlocked())
      .def("set_parameter", &TensorAccess::set_parameter, Unlocked())
      .def("local", &tensor_or_none<&TensorAccess::local>)
      .def("set_local", &TensorAccess::set_local, Unlocked())
      .def("open", &TensorAccess::open, Unlocked())
      .def("close", &TensorAccess::close, Unlocked())
      .def("unit_calls", &TensorAccess::unit_calls);
}

}  // namespace

void register_params(py::module_& module) {
  register_channel(module);
  register_early_shards(module);
  register_access(module);
}

}  // namespace shardwise::bindings
