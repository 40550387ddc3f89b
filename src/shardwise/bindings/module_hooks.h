// Forward hooks of nn.Module that drive units.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "shardwise/zero/unit_driver.h"

namespace shardwise::bindings {

using WeakDriver = std::weak_ptr<zero::UnitDriver>;

// For register_forward_pre_hook(hook, with_kwargs=True, prepend=True) on a module of the unit.
// `is_root`: the module is the whole model.
pybind11::cpp_function make_pre_hook(WeakDriver driver, int unit, bool is_root);
// For register_forward_hook(hook) on the same module.
pybind11::cpp_function make_post_hook(WeakDriver driver, int unit);

}  // namespace shardwise::bindings
