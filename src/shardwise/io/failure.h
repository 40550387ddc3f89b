// For tests only: what a call throws.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "shardwise/base/error.h"

namespace shardwise::io {

// The message of the `Kind` that `call` throws; anything else fails the test.
template <typename Kind, typename Call>
std::string failure(Call&& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Kind& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace shardwise::io
