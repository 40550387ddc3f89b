#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/bindings/end_without_gil.h"
#include "shardwise/bindings/module_hooks.h"
#include "shardwise/bindings/registrations.h"
#include "shardwise/comm/meeting_point.h"
#include "shardwise/comm/rank_group.h"
#include "shardwise/device/determinism.h"
#include "shardwise/diagnostics/flight_recorder.h"
#include "shardwise/precision/loss_scale.h"
#include "shardwise/train/engine.h"
#include "shardwise/zero/early_shard.h"

namespace py = pybind11;

namespace shardwise::bindings {
namespace {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using Unlocked = py::call_guard<py::gil_scoped_release>;

std::shared_ptr<comm::Channel> make_channel(const ProcessGroupPtr& group, at::Device device,
                                            double timeout_seconds, const std::string& label) {
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(timeout_seconds * 1000));
  const auto backend = group ? group->getBackend(device.type()) : nullptr;
  return comm::make_channel(backend, device, timeout, label);
}

c10::intrusive_ptr<c10d::Store> meet_ranks(double timeout_seconds) {
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(timeout_seconds * 1000));
  const auto environment = config::read_launch_environment();
  const py::gil_scoped_release unlocked;
  return comm::meet_ranks(environment, timeout, [] {
    const py::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  });
}

// A unit as Python says it: (name, [(name, aliases, tensor, dtype, group, source, dtype of travel
// or "", whole matrix)], [used units]).
params::UnitSpec unit_spec(const py::tuple& unit) {
  params::UnitSpec spec;
  spec.name = unit[0].cast<std::string>();
  for (const py::handle item : unit[1]) {
    const auto parameter = item.cast<py::tuple>();
    const auto travel = parameter[6].cast<std::string>();
    spec.parameters.push_back(
        {.name = parameter[0].cast<std::string>(),
         .aliases = parameter[1].cast<std::vector<std::string>>(),
         .tensor = parameter[2].cast<at::Tensor>(),
         .dtype = precision::dtype_of(parameter[3].cast<std::string>()),
         .group = parameter[4].cast<int>(),
         .source = parameter[5].cast<std::shared_ptr<zero::EarlyShard>>(),
         .travel = travel.empty() ? std::nullopt : std::optional(precision::dtype_of(travel)),
         .whole_matrix = parameter[7].cast<bool>()});
  }
  spec.uses = unit[2].cast<std::vector<int>>();
  return spec;
}

std::shared_ptr<train::Engine> make_engine(const config::Resolved& config, at::Device device,
                                           const optim::RuleOptions& rule, const py::dict& groups,
                                           const std::string& settings, const py::list& units) {
  std::vector<params::UnitSpec> specs;
  for (const py::handle unit : units) {
    specs.push_back(unit_spec(unit.cast<py::tuple>()));
  }
  const double timeout = config.config().own.timeout_seconds;
  const auto channel = [&](const char* name) {
    const auto group =
        groups.contains(name) ? groups[name].cast<ProcessGroupPtr>() : ProcessGroupPtr();
    return make_channel(group, device, timeout, name);
  };
  comm::ShardChannels channels{channel("gather"), channel("reduce")};
  if (groups.contains("world")) {
    channels.replicate = channel("replicate");
    channels.world = channel("world");
  }
  const train::EngineOptions options{
      .config = config.config(), .device = device, .rule = rule, .settings = settings};
  const py::gil_scoped_release unlocked;
  return end_without_gil(std::make_shared<train::Engine>(options, channels, std::move(specs)));
}

py::object last_result(train::Engine& engine) {
  const kernels::BoundaryResult* result = nullptr;
  {
    const py::gil_scoped_release unlocked;
    result = engine.last_result();
  }
  if (result == nullptr) {
    return py::none();
  }
  py::dict values;
  values["norm"] = result->norm;
  values["norm_clipped"] = result->norm_clipped;
  values["loss_scale"] = result->loss_scale;
  values["next_loss_scale"] = result->next_loss_scale;
  values["applied"] = result->applied != 0;
  values["overflow"] = result->overflow != 0;
  return values;
}

py::dict memory_report(const train::Engine& engine) {
  py::dict tiers;
  for (const params::Tier tier : params::kTiers) {
    const train::MemoryReport report = engine.memory_report(tier);
    py::dict values;
    values["parameters"] = report.parameters;
    values["gradients"] = report.gradients;
    values["optimizer"] = report.optimizer;
    values["ring"] = report.ring;
    values["gradients_in_flight"] = report.gradients_in_flight;
    tiers[params::tier_name(tier)] = values;
  }
  return tiers;
}

py::dict traffic(const train::Engine& engine) {
  py::dict values;
  for (int i = 0; i < comm::kCollectiveCount; ++i) {
    const auto collective = static_cast<comm::Collective>(i);
    const comm::Traffic counted = engine.traffic(collective);
    py::dict one;
    one["calls"] = counted.calls;
    one["elements"] = counted.elements;
    one["bytes"] = counted.bytes;
    one["payload_bytes"] = counted.payload_bytes;
    one["seconds"] = counted.seconds;
    values[comm::collective_name(collective)] = one;
  }
  return values;
}

void measure_collectives(const train::Engine& engine, bool on) {
  for (comm::Channel* channel : engine.channels()) {
    channel->measure(on);
  }
}

py::dict host_times(train::Engine& engine) {
  const zero::HostTimes& times = engine.driver().host_times();
  const auto microseconds = [](double seconds, std::int64_t calls) {
    return calls == 0 ? 0.0 : seconds * 1e6 / static_cast<double>(calls);
  };
  py::dict values;
  values["forward_microseconds"] = microseconds(times.forward_seconds, times.forward_calls);
  values["backward_microseconds"] = microseconds(times.backward_seconds, times.backward_calls);
  return values;
}

// One entry a parameter, in the order of indices.
py::list parameter_list(const train::Engine& engine) {
  py::list list;
  for (const params::ParameterAddress& address : engine.registry().parameters()) {
    const params::Parameter& parameter = address.parameter();
    list.append(
        py::make_tuple(parameter.name, parameter.aliases, address.unit, address.segment->sharded));
  }
  return list;
}

py::list state_view(const train::Engine& engine) {
  py::list list;
  const zero::ShardedOptimizer* optimizer = engine.optimizer();
  for (const params::StatePiece& piece :
       optimizer != nullptr ? optimizer->state_view() : params::StateView{}) {
    list.append(py::make_tuple(piece.parameter, piece.kind, piece.sizes,
                               py::make_tuple(piece.elements.begin, piece.elements.end),
                               piece.data));
  }
  return list;
}

void register_window(py::module_& module) {
  using Window = zero::AccumulationWindow;
  py::class_<Window>(module, "AccumulationWindow", "The micro-batches of the step under way.")
      .def_property_readonly("at_boundary", &Window::at_boundary)
      .def_property_readonly("held", &Window::held)
      .def_property_readonly("empty", &Window::empty)
      .def_property_readonly("micro_steps", &Window::micro_steps)
      .def_property_readonly("had_backward", &Window::had_backward)
      .def("force_boundary", &Window::force_boundary)
      .def("drop", &Window::drop);
}

// Names of the parameters that are to join the training in the next step.
std::vector<std::string> newcomers(train::Engine& engine) {
  std::vector<std::string> names;
  for (const int index : engine.driver().unfrozen()) {
    names.push_back(engine.registry().parameters()[index].parameter().name);
  }
  return names;
}

py::list pieces(const train::Engine& engine) {
  py::list list;
  for (const zero::MasterPiece& piece : engine.optimizer()->pieces()) {
    list.append(py::make_tuple(piece.parameter, piece.data));
  }
  return list;
}

// `update` gets a list of tensors and Nones. The engine may end without the GIL.
void set_outside_update(train::Engine& engine, const py::function& update) {
  const std::shared_ptr<py::function> held(new py::function(update), [](py::function* function) {
    const py::gil_scoped_acquire locked;
    delete function;
  });
  engine.optimizer()->set_outside_update([held](const std::vector<at::Tensor>& gradients) {
    const py::gil_scoped_acquire locked;
    py::list list;
    for (const at::Tensor& gradient : gradients) {
      list.append(gradient.defined() ? py::cast(gradient) : py::object(py::none()));
    }
    (*held)(list);
  });
}

template <typename Read>
py::object tensor_or_none(const Read& read) {
  at::Tensor tensor;
  {
    const py::gil_scoped_release unlocked;
    tensor = read();
  }
  return tensor.defined() ? py::cast(tensor) : py::object(py::none());
}

py::object assemble(train::Engine& engine, int parameter, const std::optional<at::Tensor>& piece) {
  return tensor_or_none([&] { return engine.assemble(parameter, piece.value_or(at::Tensor())); });
}

void register_flight_recorder(py::module_& module) {
  using Recorder = diagnostics::FlightRecorder;
  py::class_<Recorder>(module, "FlightRecorder", "The latest collectives of an engine.")
      .def(py::init([](const train::Engine& engine) {
             return std::make_unique<Recorder>(engine.channels());
           }),
           py::arg("engine"))
      .def("under_way", &Recorder::under_way)
      .def("last_finished", &Recorder::last_finished)
      .def("count", &Recorder::count);
}

}  // namespace

void register_engine(py::module_& module) {
  register_window(module);
  register_flight_recorder(module);
  module.def("check_torch", &params::check_flat_storage_works,
             "Raises InternalError unless this torch behaves as the engine needs.");
  module.def("meet_ranks", &meet_ranks, py::arg("timeout_seconds"),
             "The store of the launcher's ranks, once all of them have come to it.");
  module.def("make_deterministic", &device::make_deterministic, py::arg("device"),
             "Makes this process choose the same kernels and algorithms in every run.");
  py::class_<train::Engine, std::shared_ptr<train::Engine>>(module, "Engine")
      .def(py::init(&make_engine), py::arg("config"), py::arg("device"), py::arg("rule"),
           py::arg("groups"), py::arg("settings"), py::arg("units"))
      .def("pre_hook",
           [](const std::shared_ptr<train::Engine>& engine, int unit, bool is_root) {
             return make_pre_hook(engine->driver().weak_from_this(), unit, is_root);
           })
      .def("post_hook",
           [](const std::shared_ptr<train::Engine>& engine, int unit) {
             return make_post_hook(engine->driver().weak_from_this(), unit);
           })
      .def("before_forward",
           [](train::Engine& engine) {
             engine.registry().check_intact();
             engine.driver().watch_unfrozen();
             return newcomers(engine);
           })
      .def_property_readonly("window", &train::Engine::window,
                             py::return_value_policy::reference_internal)
      .def(
          "backward",
          [](train::Engine& engine, const at::Tensor& loss, bool retain_graph, bool divide,
             const std::optional<at::Tensor>& tokens) {
            const py::gil_scoped_release unlocked;
            engine.backward(loss, retain_graph, divide, tokens.value_or(at::Tensor()));
          },
          py::arg("loss"), py::arg("retain_graph"), py::arg("divide"), py::arg("tokens"))
      .def("scale", &train::Engine::scale)
      .def("end_micro_batch", &train::Engine::end_micro_batch)
      .def("loss_scale",
           [](const train::Engine& engine) {
             const at::Tensor scale = engine.loss_scale();
             return scale.defined() ? scale.item<double>() : 1.0;
           })
      .def("held_by_all", &train::Engine::held_by_all, Unlocked())
      .def("step", &train::Engine::step, py::arg("groups"), py::arg("partial_of") = 0, Unlocked())
      .def("last_result", &last_result)
      .def("zero_grad", &train::Engine::zero_grad, Unlocked())
      .def(
          "set_accumulation",
          [](train::Engine& engine, std::int64_t size, const std::string& dtype) {
            engine.set_accumulation(size, precision::dtype_of(dtype));
          },
          py::arg("size"), py::arg("dtype"))
      .def("assemble", &assemble)
      .def("pieces", &pieces)
      .def("set_outside_update", &set_outside_update)
      .def("assign_group", &train::Engine::assign_group)
      .def_property_readonly("tensors", &train::Engine::tensors,
                             py::return_value_policy::reference_internal)
      .def("broadcast", &train::Engine::broadcast, Unlocked())
      .def("parameters", &parameter_list)
      .def("state_view", &state_view)
      .def("memory_report", &memory_report)
      .def("communication_failed", &train::Engine::communication_failed)
      .def("traffic", &traffic)
      .def("reset_traffic", &train::Engine::reset_traffic)
      .def("measure_collectives", &measure_collectives)
      .def("host_times", &host_times)
      .def("dismantle", &train::Engine::dismantle, Unlocked());
}

}  // namespace shardwise::bindings
