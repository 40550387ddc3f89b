// Walks a document along the schema.
#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/config/convert.h"
#include "shardwise/config/draft.h"
#include "shardwise/config/optimizer_types.h"
#include "shardwise/config/scheduler_types.h"
#include "shardwise/config/suggest.h"

namespace shardwise::config {
namespace {

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// Names in messages are printable and cut to a readable length.
std::string clip(const std::string& name) {
  constexpr std::size_t kMost = 80;
  return name.size() <= kMost ? visible(name) : shorten(Value::of(name));
}

constexpr std::size_t kMostAdvice = 100;

const Value* member(const Value& object, std::string_view name) {
  return object.is_object() ? object.find(name) : nullptr;
}

class Walker {
 public:
  Walker(const Value& document, Draft& draft) : document_(document), draft_(draft) {
    const Value* own = member(document, "shardwise");
    const Value* strict = own == nullptr ? nullptr : member(*own, "strict");
    strict_ = strict == nullptr || !strict->is_bool() || strict->boolean;
  }

  void run() {
    walk(schema().root(), document_, "");
    for (const auto& [reason, keys] : idle_) {
      draft_.note(
          concat(listed(keys), keys.size() == 1 ? " has" : " have", " no effect: ", reason));
    }
  }

 private:
  void walk(const Node& section, const Value& object, const std::string& path) {
    std::map<const Node*, std::string> seen;
    for (const auto& [name, value] : object.members) {
      const std::string full = join(path, clip(name));
      const Node* node = section.child(name);
      if (node == nullptr) {
        unknown(section, name, full);
        continue;
      }
      const auto [first, is_new] = seen.emplace(node, name);
      if (!is_new && node->last_name() != "*") {
        // The same name twice is reported by the reader.
        if (first->second != name) {
          draft_.problem(concat(full, " and ", join(path, clip(first->second)),
                                " are two names of the same key; keep one of them"));
        }
        continue;
      }
      note_old_name(*node, name, full);
      visit(*node, value, full);
    }
  }

  void visit(const Node& node, const Value& value, const std::string& full) {
    const Field* field = node.field;
    if (field == nullptr || field->is_section()) {
      enter_section(node, value, full);
    } else if (value.is_string("auto") && !allows_auto(*field)) {
      unfilled(*field, full);
    } else {
      read_key(node, value, full);
    }
  }

  void enter_section(const Node& node, const Value& value, const std::string& full) {
    if (value.is_null()) {
      return;
    }
    if (value.is_string("auto")) {
      draft_.autos.push_back(concat(full, ": an object"));
      return;
    }
    if (node.path == "zero_optimization" && value.is_bool()) {
      old_bool_form(node, value);
      return;
    }
    if (!value.is_object()) {
      draft_.problem(concat(full, ": ", shorten(value), " is ", kind_name(value),
                            "; allowed: an object",
                            value.is_bool() && node.by_name.count("enabled") > 0
                                ? concat(", for example {\"enabled\": ", shorten(value), "}")
                                : ""));
      return;
    }
    if (node.field != nullptr && !draft_.allows(*node.field)) {
      draft_.problem(concat(full, ": this section belongs to job files of `shardwise train`; an ",
                            "engine's configuration does not have it, remove it"));
      return;
    }
    judge_section(node.field, value, full);
    walk(node, value, full);
  }

  // A section that asks for its feature by being there.
  void judge_section(const Field* section, const Value& value, const std::string& full) {
    if (section == nullptr || section->presence == Presence::kNothing) {
      return;
    }
    const bool has_switch = section->presence == Presence::kOnUnlessDisabled;
    const Value* enabled = member(value, "enabled");
    const bool disabled = has_switch && enabled != nullptr && *enabled == Value::of(false);
    if (!disabled) {
      const char* disable = has_switch ? " or set \"enabled\": false in it" : "";
      not_available(*section, full, concat("remove it", disable));
    }
  }

  void read_key(const Node& node, const Value& given, const std::string& full) {
    const Field& field = *node.field;
    Value value;
    const std::string problem = convert(field.shape, given, value);
    if (!problem.empty()) {
      draft_.problem(concat(full, ": ", problem));
      draft_.broken.insert(&field);
      return;
    }
    judge(field, given, value, full);
    if (field.shape.type == Type::kMap) {
      walk(node, value, full);
    } else if (field.shape.type == Type::kObjectList && !value.is_null()) {
      walk_list(node, value, full);
    }
    if (!field.is_pattern()) {
      draft_.entries[&field] = {std::move(value), origin(full), true};
    }
  }

  std::string origin(const std::string& full) const {
    // An override sets what it names and all inside.
    for (std::size_t end = 0; end != std::string::npos;) {
      end = full.find('.', end + 1);
      if (draft_.command_line.count(full.substr(0, end)) > 0) {
        return "command line";
      }
    }
    return concat("user (", draft_.options.source, ")");
  }

  void walk_list(const Node& node, const Value& list, const std::string& full) {
    const Node& element = *node.by_name.at("[]");
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      enter_section(element, list.items[i], concat(full, "[", i, "]"));
    }
  }

  // What this version makes of a value that is right in itself.
  void judge(const Field& field, const Value& given, const Value& value, const std::string& full) {
    if (field.status == Status::kNoEffect && !field.frameworks_write_it) {
      note_idle(full, field.reason);
    }
    if (field.status == Status::kUnavailable && !is_off(field, value)) {
      const Value& off = field.shape.default_value;
      const std::string set = off.is_null() ? "" : concat(" or set ", to_text(off));
      not_available(field, concat(full, ": ", shorten(given)), concat("remove it", set));
    }
  }

  // Keys of one section that do nothing for one reason are one note.
  void note_idle(const std::string& full, const std::string& reason) {
    const auto section = [](const std::string& path) { return path.substr(0, path.rfind('.')); };
    for (auto& [known, keys] : idle_) {
      if (known == reason && section(keys.front()) == section(full)) {
        keys.push_back(full);
        return;
      }
    }
    idle_.push_back({reason, {full}});
  }

  static std::string listed(const std::vector<std::string>& keys) {
    std::string text = keys.front();
    for (std::size_t i = 1; i < keys.size(); ++i) {
      text += (i + 1 < keys.size() ? ", " : " and ") + keys[i];
    }
    return text;
  }

  static bool is_off(const Field& field, const Value& value) {
    const auto& off = field.off_values;
    return value == field.shape.default_value ||
           std::find(off.begin(), off.end(), value) != off.end();
  }

  void not_available(const Field& field, const std::string& what, const std::string& fix) {
    const std::string outlook =
        field.removed_upstream ? "newer DeepSpeed removed it, too" : needs_later_version();
    const std::string hint = field.reason.empty() ? "" : "; " + field.reason;
    draft_.problem(concat(what, " is known, not available in this version of shardwise (", outlook,
                          "); ", fix, hint));
  }

  static bool allows_auto(const Field& field) {
    const auto& choices = field.shape.choices;
    return field.shape.native_auto ||
           std::find(choices.begin(), choices.end(), "auto") != choices.end();
  }

  void unfilled(const Field& field, const std::string& full) {
    draft_.broken.insert(&field);
    const Value& value = field.shape.default_value;
    const std::string example = value.is_null() ? "" : concat(", for example ", to_text(value));
    draft_.autos.push_back(concat(full, ": ", describe(field.shape), example));
  }

  void note_old_name(const Node& node, const std::string& name, const std::string& full) {
    const Field* field = node.field;
    if (field == nullptr) {
      return;
    }
    const auto& old = field->old_names;
    if (std::find(old.begin(), old.end(), name) != old.end()) {
      draft_.note(concat(full, " is an old name; write ", node.path));
    }
  }

  void old_bool_form(const Node& node, const Value& value) {
    const int stage = value.boolean ? 1 : 0;
    draft_.note(
        concat(node.path, ": ", to_text(value), " is an old form; write {\"stage\": ", stage, "}"));
    draft_.entries[&schema().field("zero_optimization.stage")] = {to_value(stage),
                                                                  origin(node.path), true};
  }

  void unknown(const Node& section, const std::string& name, const std::string& full) {
    const std::string type = chosen_type(section);
    const bool scheduler = section.path == "scheduler.params";
    // Settings of an optimizer or schedule that does not exist here: the type is reported already.
    const bool free =
        !type.empty() && !(scheduler ? is_available_scheduler(type) : is_available_optimizer(type));
    if (flat_key(section, name) || free) {
      return;
    }
    const std::vector<std::string> settings = type.empty() ? std::vector<std::string>()
                                              : scheduler  ? scheduler_settings(type)
                                                           : optimizer_setting_names(type);
    // Advice takes a search of all names; a document that is wrong throughout does without.
    const bool few = draft_.problems.size() + draft_.notes.size() < kMostAdvice;
    const std::string text =
        name.empty() ? concat(full, "\"\": a key without a name; remove it")
                     : concat(full, ": unknown key",
                              few ? "; " + advice(section, name, draft_.job, settings) : "");
    if (strict_) {
      draft_.problem(text);
    } else {
      draft_.note(concat(text, " (ignored, since shardwise.strict is false)"));
    }
  }

  // TRL writes a few keys of zero_optimization as "zero_optimization.x" at the top level, where
  // DeepSpeed ignores them.
  bool flat_key(const Node& section, const std::string& name) {
    const bool flat = section.path.empty() && name.rfind("zero_optimization.", 0) == 0 &&
                      schema().find(name) != nullptr;
    if (flat) {
      draft_.note(concat("\"", name, "\" at the top level has no effect: the key belongs inside ",
                         "zero_optimization (some frameworks write it there as well)"));
    }
    return flat;
  }

  // The type of optimizer or schedule whose settings the section holds; "" for other sections, or
  // where the document names none that is known.
  std::string chosen_type(const Node& section) const {
    const bool optimizer = section.path == "optimizer.params";
    const bool scheduler = section.path == "scheduler.params";
    const Value* parent = optimizer   ? member(document_, "optimizer")
                          : scheduler ? member(document_, "scheduler")
                                      : nullptr;
    const Value* type = parent == nullptr ? nullptr : member(*parent, "type");
    if (type == nullptr || !type->is_string()) {
      return "";
    }
    Value name;
    const Shape& types = schema().field(scheduler ? "scheduler.type" : "optimizer.type").shape;
    return convert(types, *type, name).empty() ? name.text : "";
  }

  const Value& document_;
  Draft& draft_;
  std::vector<std::pair<std::string, std::vector<std::string>>> idle_;  // reason, keys
  bool strict_ = true;
};

void fill_defaults(Draft& draft) {
  for (const Field& field : schema().fields()) {
    const bool has_value = !field.is_section() && !field.is_pattern() && draft.allows(field);
    if (has_value && draft.entries.count(&field) == 0) {
      draft.entries[&field] = {field.shape.default_value, "default", false};
    }
  }
}

}  // namespace

std::string needs_later_version() { return "needs version > " SW_VERSION; }

const Entry& Draft::entry(std::string_view path) const {
  const auto found = entries.find(&schema().field(path));
  SW_CHECK(found != entries.end(), path, " has no single value");
  return found->second;
}

const Value& Draft::value(std::string_view path) const { return entry(path).value; }

bool Draft::sound(std::initializer_list<std::string_view> paths) const {
  return std::none_of(paths.begin(), paths.end(), [&](std::string_view path) {
    return broken.count(&schema().field(path)) > 0;
  });
}

void Draft::derive(std::string_view path, Value value, const std::string& origin) {
  const Field& field = schema().field(path);
  SW_CHECK(field.derivable || field.shape.nullable, path, " is not declared as derived");
  entries[&field] = {std::move(value), origin, false};
}

void read_document(const Value& document, Draft& draft) {
  SW_USER_CHECK(ConfigError, document.is_object(), draft.options.source, ": the document is ",
                kind_name(document), "; a configuration is an object: {\"train_batch_size\": 8}");
  Walker(document, draft).run();
  fill_defaults(draft);
}

Config make_config(const std::map<const Field*, Entry>& entries) {
  Config config;
  for (const auto& [field, entry] : entries) {
    if (field->store) {
      field->store(config, entry.value);
    }
  }
  return config;
}

JobSections make_job_sections(const std::map<const Field*, Entry>& entries) {
  JobSections job;
  for (const auto& [field, entry] : entries) {
    if (field->store_job) {
      field->store_job(job, entry.value);
    }
  }
  return job;
}

}  // namespace shardwise::config
