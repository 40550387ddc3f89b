// A document on its way to Resolved: values with origins, and what is wrong so far.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/config/config.h"
#include "shardwise/config/json_reader.h"
#include "shardwise/config/schema.h"

namespace shardwise::config {

struct Entry {
  Value value;
  std::string origin;
  bool given = false;  // by the user, in the document
};

struct Draft {
  LoadOptions options;
  bool job = false;                       // a job file, which may have the sections of one
  KeyLines lines;                         // of the document's keys, where it is a file
  std::set<std::string> command_line;     // paths in the document that an override has set
  std::map<const Field*, Entry> entries;  // keys with a single value (no "*" and "[]")
  std::set<const Field*> broken;          // keys whose value is wrong already
  std::vector<std::string> problems;
  std::vector<std::string> notes;
  // Keys with the value "auto", and what to write instead.
  std::vector<std::string> autos;

  const Value& value(std::string_view path) const;
  const Entry& entry(std::string_view path) const;
  bool given(std::string_view path) const { return entry(path).given; }
  bool is_true(std::string_view path) const { return value(path).boolean; }
  // Whether the document may have this key.
  bool allows(const Field& field) const { return job || !field.of_job; }
  // Whether the values of all these keys are right so far.
  bool sound(std::initializer_list<std::string_view> paths) const;
  void derive(std::string_view path, Value value, const std::string& origin);
  void problem(std::string text) { problems.push_back(std::move(text)); }
  void note(std::string text) { notes.push_back(std::move(text)); }
};

struct Resolved::State {
  Config config;
  LoadOptions options;
  bool job = false;
  std::map<const Field*, Entry> entries;  // of all keys with a single value
  std::vector<std::string> notes;
};

// Fills all entries: what the document gives, and the defaults. Collects unknown keys, wrong
// values, features that do not exist, keys that are "auto".
void read_document(const Value& document, Draft& draft);

// Solves the batch sizes and other derived values and checks values against each other.
void check_and_derive(Draft& draft);

// What a job file lacks or contradicts, beyond the engine's configuration.
void check_job(Draft& draft);

// One line for each key that only the Python front carries out and that asks for something.
std::vector<std::string> python_problems(const std::map<const Field*, Entry>& entries);

// Copies the values of all bound keys into the structs.
Config make_config(const std::map<const Field*, Entry>& entries);
JobSections make_job_sections(const std::map<const Field*, Entry>& entries);

// The dtype that gradients are summed in when the configuration does not say: fp32 where several
// micro-batches make a step and masters are fp32, else `model_dtype`.
std::string default_sum_dtype(const std::string& model_dtype, std::int64_t accumulation_steps,
                              bool sixteen_bit_masters);

// "needs version > 0.1.0": what this version cannot do comes with a later one, if at all.
std::string needs_later_version();

// A document that lies in `file`, whose lines messages name.
Resolved load_file_text(std::string_view json_text, const std::string& file, LoadOptions options);

// All of the above for one document; one ConfigError with all that is wrong.
std::shared_ptr<const Resolved::State> resolve(const Value& document, Draft draft);

}  // namespace shardwise::config
