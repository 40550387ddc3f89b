// What is known about one configuration key, and the list of all keys.
//
// Note [One field list]
// Each key is declared once, in one of the fields_*.cpp, with its name, default, range, meaning and
// what this version does with it. Reading, validation, origins, suggestions, access from Python and
// the reference page all work from this list; keys that something reads also have a binding to the
// typed struct in config.h, whose initialiser is then the default.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shardwise/config/config.h"
#include "shardwise/config/job.h"
#include "shardwise/config/json_value.h"

namespace shardwise::config {

enum class Type {
  kBool,
  kInt,
  kFloat,
  kString,
  kStringList,  // one string is taken as a list of one
  kIntList,
  kFloatList,
  kFloatOrList,  // a number, or a list of numbers
  kObject,       // an object that is not looked into
  kAny,          // any value, not looked into
  kSection,      // an object whose keys are fields of their own
  kMap,          // an object with free names; the fields of its values have "*" in their path
  kObjectList,   // a list of objects; their fields have "[]" in their path
};

enum class Status {
  kActs,         // does what its meaning says
  kNoEffect,     // accepted; tunes something that does not exist here
  kUnavailable,  // known; an error unless its value means "off"
  kPart,         // a setting of a feature that another key turns on
  kAccepted,     // written by frameworks for themselves; ignored
  kSection,      // only groups other keys
};

// What it means that a section is given at all.
enum class Presence {
  kNothing,
  kOn,                // it asks for the feature, which is not available
  kOnUnlessDisabled,  // the same, unless its key "enabled" is false
};

// Type, default and allowed values of a key.
struct Shape {
  Type type = Type::kAny;
  Value default_value;
  bool nullable = false;
  bool must_be_given = false;  // where the key counts; null is no value then
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;          // the least value itself is not allowed
  bool below_most = false;           // nor the most
  int length = -1;                   // of a list; -1: any
  std::vector<std::string> choices;  // for strings; empty: any
  std::vector<std::pair<std::string, std::string>> spellings;  // other spelling -> choice
  bool bool_spells = false;                                    // true and false are spellings too
  bool any_case = false;                                       // choices are compared without case
  bool native_auto = false;                                    // "auto" is a value of its own
  bool infinity_is_null = false;                               // Infinity and "inf" mean null
  std::string described;  // what is allowed, where the choices say too much

  Shape& or_null();   // null is allowed, and the default
  Shape& null_too();  // null is allowed
  Shape& required();  // null is the default and stands for a value that is missing
  Shape& min(double value);
  Shape& max(double value);
  Shape& range(double low, double high) { return min(low).max(high); }
  Shape& above(double value);
  Shape& below(double value);
  Shape& auto_allowed();
  Shape& inf_as_null();
};

Shape boolean(bool value);
Shape integer(std::int64_t value);
Shape number(double value);
Shape text(const char* value);
Shape words(std::vector<std::string> values);
Shape number_or_list(double value);
Shape integers(std::vector<std::int64_t> values);
Shape one_of(std::vector<std::string> choices, const char* value);
Shape dtype(const char* value);  // fp32, fp16, bf16 in all their spellings
Shape object();                  // null by default
Shape any();                     // null by default
Shape map();                     // null by default
Shape objects();                 // a list of objects, null by default

struct Field {
  std::string path;
  Shape shape;
  Status status = Status::kActs;
  std::string doc;
  std::string reason;  // kNoEffect: why; kUnavailable: what to do instead; kAccepted: who writes it
  std::string gate;    // kPart: the key that turns the feature on
  std::vector<std::string> aliases;    // other names of the last part of the path
  std::vector<std::string> old_names;  // the same, but deprecated
  std::vector<Value> off_values;       // kUnavailable: values besides the default that mean "off"
  bool derivable = false;              // resolved from other keys when not given
  bool removed_upstream = false;       // newer DeepSpeed has no such key
  Presence presence = Presence::kNothing;  // kSection
  bool frameworks_write_it = false;        // kNoEffect: no note, since users did not choose it
  bool of_job = false;                     // a key or section of job files alone
  bool in_python = false;                  // acts in the Python front alone
  std::function<void(Config&, const Value&)> store;           // empty: no struct member
  std::function<void(JobSections&, const Value&)> store_job;  // the same for keys of job files
  std::function<Value(const Config&)> load;

  Field& alias(std::string name);
  Field& old_name(std::string name);
  Field& also_off(Value value);
  Field& instead(std::string hint);
  Field& derived();
  Field& removed();
  Field& on_when_present(bool unless_disabled = false);
  Field& quiet();

  bool is_section() const { return shape.type == Type::kSection; }
  // Whether the path goes through a map or a list, so that there is no single value.
  bool is_pattern() const;
};

// Conversions between struct members and values; `from_value` sees only values of the right type.
Value to_value(bool value);
Value to_value(int value);
Value to_value(std::int64_t value);
Value to_value(std::uint64_t value);
Value to_value(double value);
Value to_value(const std::string& value);
Value to_value(const std::vector<std::string>& value);
Value to_value(const std::array<double, 2>& value);
Value to_value(const std::vector<double>& value);  // one as a number, none as null
void from_value(const Value& value, bool& out);
void from_value(const Value& value, int& out);
void from_value(const Value& value, std::int64_t& out);
void from_value(const Value& value, std::uint64_t& out);  // the value is not negative
void from_value(const Value& value, double& out);
void from_value(const Value& value, std::string& out);
void from_value(const Value& value, std::vector<std::string>& out);
void from_value(const Value& value, std::array<double, 2>& out);
void from_value(const Value& value, std::vector<double>& out);

// The declarations. A declaring function returns the field for further settings.
class FieldList {
 public:
  Field& section(std::string path, std::string doc);
  // Read by the Python front; programs without it refuse any value but the default.
  Field& in_python(std::string path, Shape shape, std::string doc);
  // Acts by being checked against other values; nothing reads it later.
  Field& checked(std::string path, Shape shape, std::string doc);
  Field& no_effect(std::string path, Shape shape, std::string doc, std::string reason);
  Field& unavailable(std::string path, Shape shape, std::string doc);
  Field& part(std::string gate, std::string path, Shape shape, std::string doc);
  Field& accepted(std::string path, Shape shape, std::string doc, std::string written_by);

  // A key with a struct member: `member` is a generic function from a Config to the member.
  template <typename Member>
  Field& acts(std::string path, Shape shape, std::string doc, Member member) {
    Field& field = add(std::move(path), std::move(shape), Status::kActs, std::move(doc));
    return bind(field, member);
  }

  // A section of job files.
  Field& job_section(std::string path, std::string doc);

  // A key of job files: `member` is a generic function from JobSections to the member.
  template <typename Member>
  Field& job_key(std::string path, Shape shape, std::string doc, Member member) {
    Field& field = add(std::move(path), std::move(shape), Status::kActs, std::move(doc));
    field.of_job = true;
    if (!field.shape.nullable) {
      const JobSections defaults;
      field.shape.default_value = to_value(member(defaults));
    }
    field.store_job = [member](JobSections& job, const Value& value) {
      if (!value.is_null()) {
        from_value(value, member(job));
      }
    };
    return field;
  }

  // Connects a declared key with a struct member, which also gives the default.
  template <typename Member>
  static Field& bind(Field& field, Member member) {
    using Held = std::remove_reference_t<decltype(member(std::declval<Config&>()))>;
    if constexpr (std::is_same_v<Held, int>) {
      field.shape.least = std::max<double>(field.shape.least, std::numeric_limits<int>::min());
      field.shape.most = std::min<double>(field.shape.most, std::numeric_limits<int>::max());
    }
    if (!field.shape.nullable) {
      const Config defaults;
      field.shape.default_value = to_value(member(defaults));
    }
    field.load = [member](const Config& config) { return to_value(member(config)); };
    field.store = [member](Config& config, const Value& value) {
      if (!value.is_null()) {
        from_value(value, member(config));
      }
    };
    return field;
  }

  struct Part {
    const char* name;
    Shape shape;
    const char* doc;
  };
  // Several settings of the feature that `gate` turns on; names are relative to `prefix`.
  void parts(const std::string& gate, const std::string& prefix, const std::vector<Part>& parts);

  const std::deque<Field>& fields() const { return fields_; }

 private:
  Field& add(std::string path, Shape shape, Status status, std::string doc);

  std::deque<Field> fields_;
};

// Accessor for FieldList::acts: SW_MEMBER(zero.stage).
#define SW_MEMBER(member) [](auto& config) -> auto& { return config.member; }

// One function per fields_*.cpp.
void add_batch_fields(FieldList& list);
void add_gradient_fields(FieldList& list);
void add_logging_fields(FieldList& list);
void add_precision_fields(FieldList& list);
void add_optimizer_fields(FieldList& list);
void add_scheduler_fields(FieldList& list);
void add_zero_fields(FieldList& list);
void add_offload_fields(FieldList& list);
void add_own_fields(FieldList& list);
void add_parallel_fields(FieldList& list);
void add_compile_fields(FieldList& list);
void add_checkpoint_fields(FieldList& list);
void add_monitor_fields(FieldList& list);
void add_tuning_fields(FieldList& list);
void add_data_fields(FieldList& list);
void add_compression_fields(FieldList& list);
void add_job_fields(FieldList& list);

}  // namespace shardwise::config
