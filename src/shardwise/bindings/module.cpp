#include <pybind11/pybind11.h>

#include "shardwise/base/error.h"
#include "shardwise/bindings/registrations.h"

namespace py = pybind11;

namespace shardwise::bindings {
namespace {

// The Python class for each kind of error, made once when the module is imported.
struct ErrorClasses {
  py::object config, usage, data, communication, io, internal;
};

py::object make_class(py::module_& module, const char* name, PyObject* base, const char* doc) {
  const std::string full = std::string("shardwise.") + name;
  auto made = py::reinterpret_steal<py::object>(
      PyErr_NewExceptionWithDoc(full.c_str(), doc, base, nullptr));
  module.attr(name) = made;
  return made;
}

PyObject* class_for(const ErrorClasses& classes, ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig: return classes.config.ptr();
    case ErrorKind::kUsage: return classes.usage.ptr();
    case ErrorKind::kData: return classes.data.ptr();
    case ErrorKind::kCommunication: return classes.communication.ptr();
    case ErrorKind::kIo: return classes.io.ptr();
    case ErrorKind::kInternal: return classes.internal.ptr();
  }
  return PyExc_RuntimeError;
}

}  // namespace

void register_errors(py::module_& module) {
  // Never destroyed: translators may run while the interpreter shuts down.
  static const auto* classes = new ErrorClasses{
      make_class(module, "ConfigError", PyExc_ValueError, "The configuration is wrong."),
      make_class(module, "UsageError", PyExc_RuntimeError, "A call that cannot work."),
      make_class(module, "DataError", PyExc_ValueError, "Data or model files have wrong content."),
      make_class(module, "CommunicationError", PyExc_RuntimeError,
                 "A collective failed, timed out, or the ranks did different things."),
      make_class(module, "IoError", PyExc_OSError, "The operating system refused."),
      make_class(module, "InternalError", PyExc_RuntimeError, "A bug of shardwise.")};
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const Error& error) {
      PyErr_SetString(class_for(*classes, error.kind()), error.what());
    }
  });
}

}  // namespace shardwise::bindings

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ core of shardwise.";
  module.attr("version") = SW_VERSION;
  shardwise::bindings::register_errors(module);
  shardwise::bindings::register_config(module);
  shardwise::bindings::register_data(module);
  shardwise::bindings::register_params(module);
  shardwise::bindings::register_engine(module);
  shardwise::bindings::register_optim(module);
  shardwise::bindings::register_models(module);
  shardwise::bindings::register_bench(module);
}
