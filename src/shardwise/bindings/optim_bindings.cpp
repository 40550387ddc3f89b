#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "shardwise/bindings/registrations.h"
#include "shardwise/config/config.h"
#include "shardwise/optim/configured_rule.h"
#include "shardwise/optim/muon_rule.h"
#include "shardwise/optim/schedule.h"

namespace py = pybind11;

namespace shardwise::bindings {
namespace {

void register_rules(py::module_& module) {
  py::class_<optim::RuleOptions>(module, "RuleOptions", "An update rule of the core.")
      .def(py::init([](const std::string& name, bool with_momentum, double initial_state) {
             return optim::RuleOptions{name, with_momentum, initial_state};
           }),
           py::arg("name") = "", py::arg("with_momentum") = false, py::arg("initial_state") = 0.0)
      .def_readonly("name", &optim::RuleOptions::name)
      .def_readonly("initial_state", &optim::RuleOptions::initial_state);
  module.attr("OUTSIDE_RULE") = optim::kOutsideRule;
  module.def(
      "rule_values",
      [](const optim::RuleOptions& rule) { return optim::make_update_rule(rule)->value_names(); },
      "Names of the hyperparameters that a rule reads of each parameter group.");
  module.def(
      "configured_rule",
      [](const config::Resolved& config) {
        const optim::ConfiguredRule rule = optim::configured_rule(config.config().optimizer);
        return py::make_tuple(rule.rule, rule.values, rule.matrix_values);
      },
      "The rule that the configuration names, the hyperparameters of its groups, and those of "
      "groups "
      "that Muon moves (empty for other rules).");
  module.def("muon_takes", &optim::muon_takes, py::arg("name"), py::arg("dimensions"),
             "Whether Muon moves a parameter of this name as a matrix.");
  module.attr("MUON_RULE") = optim::kMuonRule;
}

void register_schedules(py::module_& module) {
  py::class_<optim::Schedule>(module, "Schedule", "A learning-rate schedule, without state.")
      .def(
          "values",
          [](const optim::Schedule& self, std::int64_t iteration,
             const std::vector<double>& base_lr) {
            const optim::ScheduleValues values = self.values(iteration, base_lr);
            return py::make_tuple(values.lr, values.momenta);
          },
          py::arg("iteration"), py::arg("base_lr"),
          "Learning rate and first beta of each group; no betas: they are left alone.");
  module.def(
      "make_schedule",
      [](const config::Resolved& config) {
        return optim::make_schedule(config.config().scheduler);
      },
      "The schedule that the configuration names, or None.");
  module.attr("ONE_CYCLE_SECOND_BETA") = optim::kOneCycleSecondBeta;
}

}  // namespace

void register_optim(py::module_& module) {
  register_rules(module);
  register_schedules(module);
}

}  // namespace shardwise::bindings
