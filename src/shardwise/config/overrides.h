// Values from the command line that are put into a document before it is read.
#pragma once

#include <vector>

#include "shardwise/config/draft.h"

namespace shardwise::config {

// Puts the values into the document in the order of the list and remembers their paths in
// draft.command_line. What cannot be put there becomes a problem of the draft. A key that the
// document has under another name is replaced there.
void apply_overrides(const std::vector<Override>& overrides, Value& document, Draft& draft);

}  // namespace shardwise::config
