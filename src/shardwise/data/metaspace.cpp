#include "shardwise/data/metaspace.h"

#include "shardwise/data/tokenizer_fields.h"
#include "shardwise/data/unicode.h"
#include "shardwise/io/quote.h"

namespace shardwise::data {
namespace {

PrependScheme read_scheme(const io::JsonView& view) {
  const std::string name = view.string();
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  view.fail(io::quoted(name) + " is no scheme; it must be always, first or never");
}

}  // namespace

Metaspace read_metaspace(const io::JsonView& view) {
  // "str_rep" repeats the replacement in files of old versions.
  allow_only(view, {"replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
  Metaspace made;
  made.replacement.clear();
  append_utf8(made.replacement, read_character(view.at("replacement")));
  if (const auto scheme = view.find("prepend_scheme")) {
    made.scheme = read_scheme(*scheme);
  }
  // What older versions wrote.
  if (const auto prefix = view.find("add_prefix_space"); prefix && !prefix->boolean()) {
    if (view.has("prepend_scheme") && made.scheme != PrependScheme::kNever) {
      prefix->fail("is false, which does not fit prepend_scheme; it must be left out or true");
    }
    made.scheme = PrependScheme::kNever;
  }
  made.split = view.boolean_or("split", true);
  return made;
}

}  // namespace shardwise::data
