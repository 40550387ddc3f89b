// Checks that throw. SW_CHECK* guards against our own bugs, SW_USER_CHECK* against what the user
// can fix. The comparing forms print both sides. Every form takes a message of streamable parts:
//   SW_CHECK_EQ(a, b, "shards of ", name);
//   SW_USER_CHECK(UsageError, engine.has_gradients(), "step() needs backward() first");
#pragma once

#include <sstream>
#include <string>
#include <utility>

#include "shardwise/base/error.h"

namespace shardwise {

// "" for no parts; otherwise the parts streamed one after the other.
template <typename... Parts>
std::string concat(Parts&&... parts) {
  std::ostringstream out;
  (out << ... << std::forward<Parts>(parts));
  return out.str();
}

namespace detail {

template <typename Kind, typename... Parts>
[[noreturn]] void fail(Parts&&... parts) {
  throw Kind(concat(std::forward<Parts>(parts)...));
}

}  // namespace detail
}  // namespace shardwise

#define SW_FAIL(Kind, ...) ::shardwise::detail::fail<Kind>(__VA_ARGS__)

#define SW_USER_CHECK(Kind, condition, ...) \
  do {                                      \
    if (!(condition)) {                     \
      SW_FAIL(Kind, __VA_ARGS__);           \
    }                                       \
  } while (false)

#define SW_CHECK(condition, ...)                                                \
  do {                                                                          \
    if (!(condition)) {                                                         \
      SW_FAIL(::shardwise::InternalError, __FILE__, ":", __LINE__,              \
              ": check failed: ", #condition __VA_OPT__(, "; ", ) __VA_ARGS__); \
    }                                                                           \
  } while (false)

#define SW_CHECK_OP(op, a, b, ...)                                                       \
  do {                                                                                   \
    const auto& sw_left = (a);                                                           \
    const auto& sw_right = (b);                                                          \
    if (!(sw_left op sw_right)) {                                                        \
      SW_FAIL(::shardwise::InternalError, __FILE__, ":", __LINE__,                       \
              ": check failed: " #a " " #op " " #b " (", sw_left, " against ", sw_right, \
              ")" __VA_OPT__(, "; ", ) __VA_ARGS__);                                     \
    }                                                                                    \
  } while (false)

#define SW_CHECK_EQ(a, b, ...) SW_CHECK_OP(==, a, b __VA_OPT__(, ) __VA_ARGS__)
#define SW_CHECK_NE(a, b, ...) SW_CHECK_OP(!=, a, b __VA_OPT__(, ) __VA_ARGS__)
#define SW_CHECK_LT(a, b, ...) SW_CHECK_OP(<, a, b __VA_OPT__(, ) __VA_ARGS__)
#define SW_CHECK_LE(a, b, ...) SW_CHECK_OP(<=, a, b __VA_OPT__(, ) __VA_ARGS__)
#define SW_CHECK_GE(a, b, ...) SW_CHECK_OP(>=, a, b __VA_OPT__(, ) __VA_ARGS__)
