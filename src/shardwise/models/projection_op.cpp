// models::projected for modules of Python.
#include <torch/library.h>

#include "shardwise/base/check.h"
#include "shardwise/models/projection.h"

namespace shardwise::models {
namespace {

at::Tensor projection(const at::Tensor& x, const std::vector<at::Tensor>& matrices,
                      const std::vector<at::Tensor>& biases, bool input_first,
                      const std::string& fp8) {
  SW_USER_CHECK(UsageError,
                !matrices.empty() && (biases.empty() || biases.size() == matrices.size()),
                "projection: there are ", matrices.size(), " matrices and ", biases.size(),
                " biases; there must be a bias for each matrix, or none");
  SW_USER_CHECK(UsageError, matrices.size() == 1 || !input_first,
                "projection: input_first takes a single matrix, not ", matrices.size());
  return projected(Result(x), {.matrices = matrices, .biases = biases, .input_first = input_first},
                   ops::float8_recipe(fp8));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(shardwise, m) {
  m.def(
      "projection(Tensor x, Tensor[] matrices, Tensor[] biases, bool input_first=False, "
      "str fp8='off') -> Tensor",
      [](const at::Tensor& x, at::TensorList matrices, at::TensorList biases, bool input_first,
         std::string fp8) {
        return projection(x, matrices.vec(), biases.vec(), input_first, fp8);
      });
}

}  // namespace shardwise::models
