// Elements of a dtype known at run time, for the layers' plain loops on the CPU.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "shardwise/kernels/float16.h"
#include "shardwise/kernels/types.h"

namespace shardwise::kernels::cpu {

// What the elements of T are computed in.
template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
Compute<T> load(const T* from) {
  if constexpr (std::is_same_v<T, double>) {
    return *from;
  } else {
    return to_float(*from);
  }
}

template <typename T>
void store(Compute<T> value, T* to) {
  if constexpr (std::is_same_v<T, double>) {
    *to = value;
  } else {
    from_float(value, to);
  }
}

// body.template operator()<T>() for the type of the dtype.
template <typename Body>
auto with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat16: return body.template operator()<Half>();
    case DType::kBFloat16: return body.template operator()<BFloat16>();
    case DType::kFloat64: return body.template operator()<double>();
    case DType::kFloat32: break;
  }
  return body.template operator()<float>();
}

// The array in another precision; n times `absent` for a null pointer.
template <typename C>
std::vector<C> widened(const void* array, DType dtype, std::int64_t n, C absent) {
  std::vector<C> result(n, absent);
  if (array != nullptr) {
    with_type(dtype, [&]<typename T>() {
      for (std::int64_t i = 0; i < n; ++i) {
        result[i] = static_cast<C>(load(static_cast<const T*>(array) + i));
      }
    });
  }
  return result;
}

}  // namespace shardwise::kernels::cpu
