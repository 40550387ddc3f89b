#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "shardwise/bindings/registrations.h"
#include "shardwise/config/config.h"
#include "shardwise/config/env.h"
#include "shardwise/optim/configured_rule.h"

namespace py = pybind11;

namespace shardwise::bindings {
namespace {

config::LoadOptions load_options(std::int64_t world_size, const std::string& world_size_origin,
                                 const std::string& source) {
  config::LoadOptions options;
  options.world_size = world_size;
  options.world_size_origin = world_size_origin;
  options.source = source;
  options.environment_timeout_seconds = config::read_settings().timeout_seconds;
  return options;
}

py::dict launch_environment() {
  const config::LaunchEnvironment environment = config::read_launch_environment();
  py::dict result;
  result["present"] = environment.present;
  result["rank"] = environment.rank;
  result["local_rank"] = environment.local_rank;
  result["world_size"] = environment.world_size;
  result["local_world_size"] = environment.local_world_size;
  result["master_addr"] = environment.master_addr;
  result["master_port"] = environment.master_port;
  result["accelerator"] = config::read_settings().accelerator;
  return result;
}

}  // namespace

void register_config(py::module_& module) {
  py::class_<config::Resolved>(module, "Config", "A validated configuration.")
      .def_static(
          "load_text",
          [](const std::string& text, std::int64_t world_size, const std::string& world_size_origin,
             const std::string& source) {
            return config::load_text(text, load_options(world_size, world_size_origin, source));
          },
          py::arg("text"), py::arg("world_size"), py::arg("world_size_origin") = "",
          py::arg("source") = "config")
      .def_static(
          "load_argument",
          [](const std::string& argument, std::int64_t world_size,
             const std::string& world_size_origin) {
            return config::load_argument(argument,
                                         load_options(world_size, world_size_origin, "config"));
          },
          py::arg("argument"), py::arg("world_size"), py::arg("world_size_origin") = "")
      .def("value_json", &config::Resolved::value_json)
      .def("origin", &config::Resolved::origin)
      .def("to_json", &config::Resolved::to_json, py::arg("with_origins") = false)
      .def_property_readonly("notes", &config::Resolved::notes)
      .def_property_readonly("world_size", &config::Resolved::world_size)
      .def_property_readonly(
          "model_dtype", [](const config::Resolved& self) { return self.config().model_dtype(); })
      .def_property_readonly(
          "optimizer_type",
          [](const config::Resolved& self) { return self.config().optimizer.type; })
      .def_property_readonly(
          "optimizer_needs_torch",
          [](const config::Resolved& self) { return optim::needs_torch(self.config().optimizer); },
          "Whether the rule that the configuration names is carried out by torch's own class.")
      .def("with_train_batch_size", &config::Resolved::with_train_batch_size)
      .def("with_train_micro_batch_size", &config::Resolved::with_train_micro_batch_size);
  module.def("reference_markdown", &config::reference_markdown);
  module.def("launch_environment", &launch_environment,
             "What the launcher says about this process.");
}

}  // namespace shardwise::bindings
