#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "shardwise/bindings/registrations.h"
#include "shardwise/config/config.h"
#include "shardwise/optim/schedule.h"

namespace py = pybind11;

namespace shardwise::bindings {

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

}  // namespace shardwise::bindings
