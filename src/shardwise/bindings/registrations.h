// One function a file of registrations.
#pragma once

#include <pybind11/pybind11.h>

namespace shardwise::bindings {

void register_errors(pybind11::module_& module);
void register_config(pybind11::module_& module);
void register_data(pybind11::module_& module);
void register_engine(pybind11::module_& module);
void register_optim(pybind11::module_& module);
void register_params(pybind11::module_& module);
void register_models(pybind11::module_& module);
void register_bench(pybind11::module_& module);

}  // namespace shardwise::bindings
