#include "shardwise/bindings/module_hooks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace shardwise::bindings {
namespace {

// Deeper nesting than this is not a module's argument but a cycle.
constexpr int kMaxDepth = 32;
constexpr const char* kMadeValues = "_shardwise_made_values";

using Visit = std::function<void(const at::Tensor&)>;

void visit_values(py::handle object, const Visit& visit, int depth);

// Every tensor in tensors, tuples, lists, mappings and dataclasses.
void visit_tensors(py::handle object, const Visit& visit, int depth = 0) {
  PyObject* raw = object.ptr();
  if (THPVariable_Check(raw)) {
    visit(THPVariable_Unpack(raw));
    return;
  }
  if (depth >= kMaxDepth || raw == Py_None || PyLong_Check(raw) || PyUnicode_Check(raw)) {
    return;
  }
  if (PyTuple_Check(raw) || PyList_Check(raw)) {
    for (const py::handle item : py::reinterpret_borrow<py::sequence>(object)) {
      visit_tensors(item, visit, depth + 1);
    }
  } else if (PyDict_Check(raw)) {
    // An output with values that are made when somebody reads them names those that are there.
    const char* values = py::hasattr(object, kMadeValues) ? kMadeValues : "values";
    visit_values(py::reinterpret_borrow<py::object>(object).attr(values)(), visit, depth);
  } else if (py::hasattr(py::type::of(object), "__dataclass_fields__")) {
    for (const py::handle field : py::type::of(object).attr("__dataclass_fields__")) {
      if (py::hasattr(object, field)) {
        visit_tensors(object.attr(field), visit, depth + 1);
      }
    }
  }
}

void visit_values(py::handle object, const Visit& visit, int depth) {
  for (const py::handle item : object) {
    visit_tensors(item, visit, depth + 1);
  }
}

// Walks the containers that rebuild() can make again, and calls `replace` for each tensor that
// requires a gradient, always in the same order. Returns the object itself where nothing changed.
class Rebuilder {
 public:
  using Replace = std::function<at::Tensor(const at::Tensor&)>;
  explicit Rebuilder(Replace replace) : replace_(std::move(replace)) {}

  py::object rebuild(py::handle object, int depth = 0) const {
    PyObject* raw = object.ptr();
    const auto same = [&] { return py::reinterpret_borrow<py::object>(object); };
    if (THPVariable_Check(raw)) {
      const at::Tensor& tensor = THPVariable_Unpack(raw);
      if (!tensor.requires_grad()) {
        return same();
      }
      const at::Tensor replaced = replace_(tensor);
      return replaced.is_same(tensor) ? same() : py::cast(replaced);
    }
    if (depth >= kMaxDepth) {
      return same();
    }
    if (PyTuple_Check(raw)) {
      return rebuild_tuple(py::reinterpret_borrow<py::tuple>(object), depth);
    }
    if (PyList_CheckExact(raw)) {
      const auto [items, changed] = rebuild_items(object, depth);
      return changed ? py::object(items) : same();
    }
    if (PyDict_CheckExact(raw)) {
      return rebuild_dict(py::reinterpret_borrow<py::dict>(object), depth);
    }
    return same();
  }

 private:
  std::pair<py::list, bool> rebuild_items(py::handle sequence, int depth) const {
    py::list items;
    bool changed = false;
    for (const py::handle item : sequence) {
      py::object rebuilt = rebuild(item, depth + 1);
      changed = changed || rebuilt.ptr() != item.ptr();
      items.append(std::move(rebuilt));
    }
    return {std::move(items), changed};
  }

  py::object rebuild_tuple(const py::tuple& tuple, int depth) const {
    const auto [items, changed] = rebuild_items(tuple, depth);
    if (!changed) {
      return py::object(tuple);
    }
    if (PyTuple_CheckExact(tuple.ptr())) {
      return py::object(py::tuple(items));
    }
    return py::hasattr(tuple, "_make") ? py::object(tuple.attr("_make")(items))  // a named tuple
                                       : py::object(py::type::of(tuple)(items));
  }

  py::object rebuild_dict(const py::dict& dict, int depth) const {
    py::dict rebuilt;
    bool changed = false;
    for (const auto& [key, value] : dict) {
      py::object item = rebuild(value, depth + 1);
      changed = changed || item.ptr() != value.ptr();
      rebuilt[key] = std::move(item);
    }
    return changed ? py::object(rebuilt) : py::object(dict);
  }

  Replace replace_;
};

py::object pre_forward(zero::UnitDriver& driver, int unit, bool is_root, const py::tuple& args,
                       const py::dict& kwargs) {
  std::vector<at::Tensor> inputs;
  const Rebuilder collect([&](const at::Tensor& tensor) {
    inputs.push_back(tensor);
    return tensor;
  });
  collect.rebuild(args);
  collect.rebuild(kwargs);
  std::vector<at::Tensor> marked;
  {
    const py::gil_scoped_release unlocked;
    if (is_root) {
      driver.begin_pass();
    }
    marked = driver.before_forward(unit, inputs);
  }
  if (marked.empty()) {
    return py::none();
  }
  std::size_t next = 0;
  const Rebuilder substitute([&](const at::Tensor&) { return marked[next++]; });
  py::object new_args = substitute.rebuild(args);
  py::object new_kwargs = substitute.rebuild(kwargs);
  return py::make_tuple(std::move(new_args), std::move(new_kwargs));
}

void post_forward(zero::UnitDriver& driver, int unit, py::handle output) {
  std::vector<at::Tensor> outputs;
  visit_tensors(output, [&](const at::Tensor& tensor) { outputs.push_back(tensor); });
  const py::gil_scoped_release unlocked;
  driver.after_forward(unit, outputs);
}

}  // namespace

py::cpp_function make_pre_hook(WeakDriver driver, int unit, bool is_root) {
  return py::cpp_function([driver = std::move(driver), unit, is_root](
                              py::handle, const py::tuple& args, const py::dict& kwargs) {
    const auto alive = driver.lock();
    return alive ? pre_forward(*alive, unit, is_root, args, kwargs) : py::object(py::none());
  });
}

py::cpp_function make_post_hook(WeakDriver driver, int unit) {
  return py::cpp_function(
      [driver = std::move(driver), unit](py::handle, py::handle, py::handle output) {
        if (const auto alive = driver.lock()) {
          post_forward(*alive, unit, output);
        }
      });
}

}  // namespace shardwise::bindings
