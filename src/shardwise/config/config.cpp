#include "shardwise/config/config.h"

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/config/batch.h"
#include "shardwise/config/draft.h"
#include "shardwise/config/json_reader.h"
#include "shardwise/config/optimizer_types.h"
#include "shardwise/config/scheduler_types.h"
#include "shardwise/config/suggest.h"

namespace shardwise::config {
namespace {

// More than this many problems of one document are counted, not printed.
constexpr std::size_t kMostProblems = 40;

std::string auto_problem(const std::vector<std::string>& autos) {
  std::string text =
      "\"auto\" is filled in by frameworks (Hugging Face Trainer, accelerate) before "
      "the configuration gets here; write a value or remove the key:";
  for (const std::string& line : autos) {
    text += "\n       " + line;
  }
  return text;
}

// "section.key (line 3): what is wrong" for texts that begin with "section.key: ".
void name_lines(const KeyLines& lines, std::vector<std::string>& texts) {
  for (std::string& text : texts) {
    const std::size_t end = std::min(text.find(": "), text.size());
    const auto found = lines.find(text.substr(0, end));
    if (found != lines.end()) {
      text.insert(end, concat(" (line ", found->second, ")"));
    }
  }
}

// An override sets what it names and all inside: no line of the file is to blame.
void forget_overridden(const std::set<std::string>& command_line, KeyLines& lines) {
  for (const std::string& path : command_line) {
    std::erase_if(lines, [&](const auto& entry) {
      const std::string& key = entry.first;
      return key == path || key.rfind(path + ".", 0) == 0 || key.rfind(path + "[", 0) == 0;
    });
  }
}

[[noreturn]] void fail_with(const std::string& source, const std::vector<std::string>& problems) {
  if (problems.size() == 1) {
    SW_FAIL(ConfigError, visible(source), ": ", problems.front());
  }
  std::string text = concat(visible(source), ": ", problems.size(), " problems:");
  const std::size_t shown = std::min(problems.size(), kMostProblems);
  for (std::size_t i = 0; i < shown; ++i) {
    text += concat("\n  ", i + 1, ". ", problems[i]);
  }
  if (shown < problems.size()) {
    text += concat("\n  ... and ", problems.size() - shown, " more");
  }
  SW_FAIL(ConfigError, text);
}

using Entries = std::map<const Field*, Entry>;

// Whether the optimizer or schedule in use, if the document names one, has this setting.
bool belongs_to_type(const Field& field, const Entries& entries, const std::string& section,
                     std::vector<std::string> (*settings_of)(std::string_view)) {
  const std::string prefix = section + ".params.";
  if (field.path.rfind(prefix, 0) != 0) {
    return true;
  }
  const Value& type = entries.at(&schema().field(section + ".type")).value;
  const std::vector<std::string> settings = settings_of(type.text);
  const std::string name = field.path.substr(prefix.size());
  return !type.is_null() && std::find(settings.begin(), settings.end(), name) != settings.end();
}

// Whether the printed document has this key.
bool shown(const Field& field, const Entries& entries) {
  const bool acts = field.status == Status::kActs &&
                    belongs_to_type(field, entries, "optimizer", optimizer_setting_names) &&
                    belongs_to_type(field, entries, "scheduler", scheduler_settings);
  return acts || entries.at(&field).given;
}

// The section or key as one value. `all`: also keys that neither act nor were given.
Value collect(const Node& node, const Resolved::State& state, bool all) {
  const Entries& entries = state.entries;
  if (node.field != nullptr && !node.field->is_section()) {
    const auto found = entries.find(node.field);
    return found == entries.end() ? Value::null() : found->second.value;
  }
  Value object = Value::object();
  for (const auto& child : node.children) {
    const Field* field = child->field;
    if (field == nullptr || field->is_pattern() || (field->of_job && !state.job)) {
      continue;
    }
    if (field->is_section()) {
      Value section = collect(*child, state, all);
      if (all || !section.members.empty()) {
        object.set(child->last_name(), std::move(section));
      }
    } else if (all || shown(*field, entries)) {
      object.set(child->last_name(), entries.at(field).value);
    }
  }
  return object;
}

const Node& known(std::string_view path, bool job) {
  const Node* node = schema().find(path);
  const bool found = node != nullptr && (job || node->field == nullptr || !node->field->of_job);
  SW_USER_CHECK(ConfigError, found, visible(path), ": unknown key; ", advice_for_path(path, job));
  SW_USER_CHECK(ConfigError, node->field == nullptr || !node->field->is_pattern(), visible(path),
                ": this key has no single value; ask for the section that holds it");
  return *node;
}

bool any_given(const Node& node, const Entries& entries) {
  const auto found = entries.find(node.field);
  if (found != entries.end()) {
    return found->second.given;
  }
  return std::any_of(node.children.begin(), node.children.end(),
                     [&](const auto& child) { return any_given(*child, entries); });
}

// The same state with the batch size `changed` set to `value` by `caller`, and `follower` solved
// for.
Resolved with_batch(const Resolved::State& old, const char* changed, const char* follower,
                    std::int64_t value, const std::string& caller) {
  SW_USER_CHECK(ConfigError, value > 0, changed, ": ", value,
                " is too small; allowed: an integer >= 1");
  auto state = std::make_shared<Resolved::State>(old);
  const auto entry = [&](const char* path) -> Entry& {
    return state->entries.at(&schema().field(path));
  };
  entry(changed) = {Value::of(value), caller, true};
  entry(follower) = {};
  const Entry& train = entry("train_batch_size");
  const Entry& micro = entry("train_micro_batch_size_per_gpu");
  const Entry& steps = entry("gradient_accumulation_steps");
  const BatchSolution solution =
      solve_batch({{train.value.integer, micro.value.integer, steps.value.integer},
                   train.origin,
                   micro.origin,
                   steps.origin,
                   old.options.world_size,
                   old.options.world_size_origin});
  SW_USER_CHECK(ConfigError, solution.problem.empty(), caller, ": ", solution.problem);
  const BatchConfig& batch = solution.batch;
  const bool steps_follow = &entry(follower) == &steps;
  entry(follower) = {
      Value::of(steps_follow ? batch.gradient_accumulation_steps : batch.train_batch_size),
      steps_follow ? solution.steps_origin : solution.train_origin, false};
  Entry& sum = entry("data_types.grad_accum_dtype");
  if (!sum.given) {
    sum.value =
        Value::of(default_sum_dtype(old.config.model_dtype(), batch.gradient_accumulation_steps,
                                    old.config.sixteen_bit_masters()));
  }
  state->config = make_config(state->entries);
  return Resolved(std::move(state));
}

}  // namespace

std::string Config::model_dtype() const {
  return fp16.enabled ? "fp16" : bf16.enabled ? "bf16" : "fp32";
}

Resolved::Resolved(std::shared_ptr<const State> state) : state_(std::move(state)) {}

const Config& Resolved::config() const { return state_->config; }

const std::vector<std::string>& Resolved::notes() const { return state_->notes; }

std::int64_t Resolved::world_size() const { return state_->options.world_size; }

void Resolved::require_no_python() const {
  const std::vector<std::string> problems = python_problems(state_->entries);
  if (!problems.empty()) {
    fail_with(state_->options.source, problems);
  }
}

std::string Resolved::value_json(std::string_view path) const {
  return to_text(collect(known(path, state_->job), *state_, /*all=*/true));
}

std::string Resolved::origin(std::string_view path) const {
  const Node& node = known(path, state_->job);
  const auto found = state_->entries.find(node.field);
  if (found != state_->entries.end()) {
    return found->second.origin;
  }
  return any_given(node, state_->entries) ? concat("user (", state_->options.source, ")")
                                          : "default";
}

std::string Resolved::to_json(bool with_origins) const {
  if (!with_origins) {
    return to_text(collect(schema().root(), *state_, /*all=*/false), 2);
  }
  Value flat = Value::object();
  for (const Field& field : schema().fields()) {
    const auto found = state_->entries.find(&field);
    if (found != state_->entries.end() && shown(field, state_->entries)) {
      Value& entry = flat.set(field.path, Value::object());
      entry.set("value", found->second.value);
      entry.set("origin", Value::of(found->second.origin));
    }
  }
  return to_text(flat, 2);
}

Resolved Resolved::with_train_batch_size(std::int64_t train_batch_size) const {
  return with_batch(*state_, "train_batch_size", "gradient_accumulation_steps", train_batch_size,
                    "set_train_batch_size");
}

Resolved Resolved::with_train_micro_batch_size(std::int64_t micro_batch_size) const {
  return with_batch(*state_, "train_micro_batch_size_per_gpu", "train_batch_size", micro_batch_size,
                    "set_train_micro_batch_size");
}

Resolved load_text(std::string_view json_text, const LoadOptions& options) {
  Draft draft;
  draft.options = options;
  const Value document = parse_json(json_text, options.source, &draft.problems);
  return Resolved(resolve(document, std::move(draft)));
}

Resolved load_file_text(std::string_view json_text, const std::string& file, LoadOptions options) {
  Draft draft;
  draft.options = std::move(options);
  draft.options.source = file;
  const Value document = parse_json(json_text, file, &draft.problems, &draft.lines);
  return Resolved(resolve(document, std::move(draft)));
}

std::shared_ptr<const Resolved::State> resolve(const Value& document, Draft draft) {
  const LoadOptions& options = draft.options;
  SW_USER_CHECK(ConfigError, options.world_size >= 1, options.source, ": world size ",
                options.world_size, " is too small; allowed: an integer >= 1");
  read_document(document, draft);
  check_and_derive(draft);
  forget_overridden(draft.command_line, draft.lines);
  for (auto* texts : {&draft.problems, &draft.notes, &draft.autos}) {
    name_lines(draft.lines, *texts);
  }
  if (!draft.autos.empty()) {
    draft.problem(auto_problem(draft.autos));
  }
  if (!draft.problems.empty()) {
    fail_with(options.source, draft.problems);
  }
  auto state = std::make_shared<Resolved::State>();
  state->config = make_config(draft.entries);
  state->options = options;
  state->job = draft.job;
  state->entries = std::move(draft.entries);
  state->notes = std::move(draft.notes);
  return state;
}

std::vector<std::string> known_keys() {
  std::vector<std::string> paths;
  for (const Field& field : schema().fields()) {
    paths.push_back(field.path);
  }
  return paths;
}

}  // namespace shardwise::config
