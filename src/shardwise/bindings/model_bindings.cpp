#include <ATen/ATen.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

#include "shardwise/bindings/registrations.h"
#include "shardwise/models/model.h"
#include "shardwise/precision/fp8.h"

namespace py = pybind11;

namespace shardwise::bindings {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

models::Model make_model(const std::string& config_json, std::uint64_t seed,
                         const std::string& source) {
  return models::make_model(models::read_model_config(io::JsonView::parse(config_json, source)),
                            seed);
}

std::vector<std::pair<std::string, at::Tensor>> named_parameters(const models::Model& model) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (models::NamedParameter& parameter : model.parameters()) {
    all.emplace_back(std::move(parameter.name), std::move(parameter.tensor));
  }
  return all;
}

void save(const models::Model& model, const std::string& folder) {
  models::save_model(folder, model.config(), model.parameters());
}

}  // namespace

void register_models(py::module_& module) {
  py::class_<models::Model>(module, "Model", "A language model computed by the C++ core.")
      .def_static("load", &models::load_model, py::arg("folder"), Unlocked(),
                  "Weights and config.json of a Hugging Face folder, in fp32 on the CPU.")
      .def_static("make", &make_model, py::arg("config_json"), py::arg("seed"),
                  py::arg("source") = "config.json", Unlocked(),
                  "Random weights in the shape that the text of a config.json describes.")
      .def(
          "logits",
          [](const models::Model& model, const at::Tensor& tokens) { return model.logits(tokens); },
          py::arg("tokens"), Unlocked())
      .def(
          "loss",
          [](const models::Model& model, const at::Tensor& tokens, const at::Tensor& targets) {
            return model.loss(tokens, targets);
          },
          py::arg("tokens"), py::arg("targets"), Unlocked())
      .def("set_training", &models::Model::set_training, py::arg("training"))
      .def("set_activation_checkpointing", &models::Model::set_activation_checkpointing,
           py::arg("setting"), "\"off\", \"selective\" or \"full\".")
      .def("set_fp8", &models::Model::set_fp8, py::arg("setting"),
           "\"off\", \"tensorwise\" or \"rowwise\"; the names of matrices that stay in bf16.")
      .def("named_parameters", &named_parameters)
      .def("parameter_count", &models::Model::parameter_count)
      .def("save", &save, py::arg("folder"), Unlocked(),
           "Writes the parameters as they are and config.json to a folder.");
  module.def("describe_fp8_misfits", &precision::describe_fp8_misfits, py::arg("matrices"));
  module.def("next_token_targets", &models::next_token_targets, py::arg("tokens"), Unlocked());
}

}  // namespace shardwise::bindings
