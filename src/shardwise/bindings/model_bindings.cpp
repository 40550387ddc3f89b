#include <ATen/ATen.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
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

// (offsets, longest), as ops::Documents has them.
using DocumentPair = std::optional<std::pair<at::Tensor, std::int64_t>>;

models::Tokens tokens_of(const at::Tensor& ids, const DocumentPair& documents) {
  if (!documents) {
    return ids;
  }
  return {ids, ops::Documents{.offsets = documents->first, .longest = documents->second}};
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
          [](const models::Model& model, const at::Tensor& tokens, const DocumentPair& documents) {
            return model.logits(tokens_of(tokens, documents));
          },
          py::arg("tokens"), py::arg("documents") = py::none(), Unlocked())
      .def(
          "loss",
          [](const models::Model& model, const at::Tensor& tokens, const at::Tensor& targets,
             const DocumentPair& documents) {
            return model.loss(tokens_of(tokens, documents), targets);
          },
          py::arg("tokens"), py::arg("targets"), py::arg("documents") = py::none(), Unlocked())
      .def("set_training", &models::Model::set_training, py::arg("training"))
      .def("set_activation_checkpointing", &models::Model::set_activation_checkpointing,
           py::arg("setting"), "\"off\", \"selective\" or \"full\".")
      .def("set_fp8", &models::Model::set_fp8, py::arg("setting"),
           "\"off\", \"tensorwise\" or \"rowwise\"; the names of matrices that stay in bf16.")
      .def("named_parameters", &named_parameters)
      .def("parameter_count", &models::Model::parameter_count)
      .def("save", &save, py::arg("folder"), Unlocked(),
           "Writes the parameters as they are and config.json to a folder.");
  module.attr("FLOAT8_MULTIPLE") = ops::kFloat8Multiple;
  module.def("check_some_fit_float8", &ops::check_some_fit_float8, py::arg("setting"),
             py::arg("some_fit"));
  module.def("describe_fp8", &precision::describe_fp8, py::arg("setting"), py::arg("misfits"));
  module.def(
      "next_token_targets",
      [](const at::Tensor& tokens, const DocumentPair& documents) {
        return models::next_token_targets(tokens_of(tokens, documents));
      },
      py::arg("tokens"), py::arg("documents") = py::none(), Unlocked());
}

}  // namespace shardwise::bindings
