// docs/config.md from the field list.
#include <array>

#include "shardwise/base/check.h"
#include "shardwise/config/config.h"
#include "shardwise/config/convert.h"
#include "shardwise/config/schema.h"
#include "shardwise/config/suggest.h"

namespace shardwise::config {
namespace {

constexpr const char* kHead = R"(# Configuration keys

This page is made from the field list in `src/shardwise/config/`; do not edit it by hand.

A configuration is one JSON object, given as a dict, as the path of a JSON file, or as a JSON object
in urlsafe base64. It has the keys of DeepSpeed and the section `shardwise`. Comments (`//`, `/* */`,
`#`) and trailing commas are allowed in files; a key that is given twice is an error. HJSON is read
through Python when the package `hjson` is installed.

What a key does:

- **acts**: as its line says.
- **acts in Python**: the same, under `shardwise.initialize`; programs without Python refuse it.
- **no effect**: accepted; it tunes something that does not exist here. Giving it logs one line.
- **off only**: known, not available in this version. A value that means "off" is accepted silently,
  any other is an error.
- **part of**: a setting of the feature that another key turns on.
- **accepted**: written by a framework for itself; ignored.

Integers may be written as `5e8`. A number in quotes and a bool in place of a number are errors.
`"auto"` is what a framework replaces; where it is left over, it is an error that names the keys.
Unknown keys are errors that name the nearest keys (`shardwise.strict: false` makes them warnings).
Keys of `zero_optimization` that a framework writes flat at the top level, as
`"zero_optimization.reduce_bucket_size"`, have no effect. In paths `*` stands for any name and `[]`
for each element of a list.

The batch sizes obey `train_batch_size = train_micro_batch_size_per_gpu x
gradient_accumulation_steps x ranks`. What is not given is solved for; with one of the first two
alone the accumulation is 1.
)";

// What decides most about a run, in the order in which one writes it.
constexpr std::array kFirstKeys{
    "train_batch_size", "train_micro_batch_size_per_gpu",
    "optimizer.type",   "optimizer.params.lr",
    "scheduler.type",   "zero_optimization.stage",
    "bf16.enabled",     "gradient_clipping",
    "model.path",       "data.files",
    "training.steps",
};

std::string code(const std::string& text) { return "`" + text + "`"; }

std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.replace(at, 1, "\\|");
  }
  return text;
}

std::string off_list(const Field& field) {
  std::string text = code(to_text(field.shape.default_value));
  for (const Value& value : field.off_values) {
    text += ", " + code(to_text(value));
  }
  return text;
}

std::string does(const Field& field) {
  switch (field.status) {
    case Status::kActs: return field.in_python ? "acts in Python" : "acts";
    case Status::kNoEffect: return "no effect: " + field.reason;
    case Status::kUnavailable:
      return "off only (" + off_list(field) + ")" +
             (field.reason.empty() ? "" : "; " + field.reason);
    case Status::kPart: return "part of " + code(field.gate);
    case Status::kAccepted: return "accepted: written by " + field.reason;
    case Status::kSection: return "";
  }
  return "";
}

std::string other_names(const Field& field) {
  std::string text;
  for (const std::string& name : field.aliases) {
    text += " Also " + code(name) + ".";
  }
  for (const std::string& name : field.old_names) {
    text += " Old name: " + code(name) + ".";
  }
  return text;
}

std::string row(const Field& field) {
  const Value& value = field.shape.default_value;
  return concat("| ", code(field.path), " | ", cell(describe(field.shape)), " | ",
                code(cell(to_text(value))), " | ", cell(does(field)), " | ", cell(field.doc),
                other_names(field), " |\n");
}

constexpr const char* kTableHead =
    "| Key | Type | Default | Here | Meaning |\n|---|---|---|---|---|\n";

std::string section_head(const Field& field) {
  std::string text =
      concat(field.of_job ? "\n### " : "\n## ", field.path, "\n\n", field.doc, other_names(field));
  if (field.presence != Presence::kNothing) {
    text += field.presence == Presence::kOnUnlessDisabled
                ? " Not available in this version: giving the section is an error unless its "
                  "`enabled` is false."
                : " Not available in this version: giving the section is an error.";
  }
  if (field.removed_upstream) {
    text += " Gone from newer DeepSpeed.";
  }
  return text + "\n";
}

// The section and the table of its keys.
std::string section_text(const Node& node) {
  std::string text = section_head(*node.field) + "\n" + kTableHead;
  for (const Field& field : schema().fields()) {
    if (split_path(field.path).front() == node.path && !field.is_section()) {
      text += row(field);
    }
  }
  return text;
}

constexpr const char* kJobHead = R"(
## Job files of `shardwise train`

A job file is a configuration with the three sections below in the same document; they are an error
in any other configuration. It must name an optimizer. Relative paths are taken from the folder of
the job file. `--set path=value` on the command line replaces a value before the file is checked:
the value is JSON, or a string where it is none (`--set training.steps=100`).
)";

bool is_top_key(const Field& field) {
  return !field.is_section() && field.path.find('.') == std::string::npos;
}

std::string first_keys() {
  std::string text =
      "\n## The keys to start with\n\nThe others may keep their defaults until there is a "
      "reason.\n\n";
  for (const char* path : kFirstKeys) {
    const Field& field = schema().field(path);
    const std::string section = split_path(path).front();
    text += concat("- ", code(path), " ([", is_top_key(field) ? "top level" : section, "](#",
                   is_top_key(field) ? "top-level-keys" : section,
                   field.of_job ? "), job files): " : ")): ", field.doc, "\n");
  }
  return text;
}

}  // namespace

std::string reference_markdown() {
  std::string page = concat(kHead, first_keys(), "\n## Top-level keys\n\n", kTableHead);
  for (const Field& field : schema().fields()) {
    if (is_top_key(field)) {
      page += row(field);
    }
  }
  for (const auto& node : schema().root().children) {
    if (!is_top_key(*node->field) && !node->field->of_job) {
      page += section_text(*node);
    }
  }
  page += kJobHead;
  for (const auto& node : schema().root().children) {
    if (node->field->of_job) {
      page += section_text(*node);
    }
  }
  return page;
}

}  // namespace shardwise::config
