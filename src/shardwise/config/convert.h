// Checks one value against its shape.
#pragma once

#include <string>

#include "shardwise/config/field.h"

namespace shardwise::config {

// What is allowed, for messages and the reference page: "an integer from 0 to 3", "true or false".
std::string describe(const Shape& shape);

// Writes the value in its one spelling (5e8 becomes 500000000, "float32" becomes "fp32") to `out`.
// Returns "" or what is wrong: "7 is too large; allowed: an integer from 0 to 3".
std::string convert(const Shape& shape, const Value& given, Value& out);

}  // namespace shardwise::config
