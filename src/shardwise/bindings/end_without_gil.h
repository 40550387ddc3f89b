// Objects that own communicators, as Python holds them.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

namespace shardwise::bindings {

// The end of a communicator waits for its threads, which may be about to free tensors that Python
// knows and want the GIL for it: so whoever drops the last reference lets go of the GIL meanwhile.
template <typename T>
std::shared_ptr<T> end_without_gil(std::shared_ptr<T> object) {
  T* held = object.get();
  return {held, [object = std::move(object)](T*) mutable {
            if (PyGILState_Check() != 0) {
              const pybind11::gil_scoped_release unlocked;
              object.reset();
            } else {
              object.reset();
            }
          }};
}

}  // namespace shardwise::bindings
