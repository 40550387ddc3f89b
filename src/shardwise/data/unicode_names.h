// Names of character sets in regular expressions: \p{Letter}, \p{Han}, [[:alpha:]].
#pragma once

#include <string>
#include <string_view>

namespace shardwise::data {

struct NamedSet {
  std::string body;    // the inside of a PCRE2 bracket; empty: no set of this name
  bool cased = false;  // upper or lower case only
};

// Without regard to case, blanks, - and _. A name that is no general category, POSIX class or known
// property is taken for a script; PCRE2 says whether there is one.
NamedSet find_named_set(std::string_view name);

}  // namespace shardwise::data
