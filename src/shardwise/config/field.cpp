#include "shardwise/config/field.h"

#include <algorithm>

namespace shardwise::config {
namespace {

Shape make_shape(Type type, Value default_value) {
  Shape shape;
  shape.type = type;
  shape.default_value = std::move(default_value);
  return shape;
}

Shape make_null_shape(Type type) {
  Shape shape = make_shape(type, Value::null());
  shape.nullable = true;
  return shape;
}

}  // namespace

Shape& Shape::or_null() {
  nullable = true;
  default_value = Value::null();
  return *this;
}

Shape& Shape::null_too() {
  nullable = true;
  return *this;
}

Shape& Shape::required() {
  must_be_given = true;
  return or_null();
}

Shape& Shape::min(double value) {
  least = value;
  return *this;
}

Shape& Shape::max(double value) {
  most = value;
  return *this;
}

Shape& Shape::above(double value) {
  least = value;
  above_least = true;
  return *this;
}

Shape& Shape::below(double value) {
  most = value;
  below_most = true;
  return *this;
}

Shape& Shape::auto_allowed() {
  native_auto = true;
  return *this;
}

Shape& Shape::inf_as_null() {
  infinity_is_null = true;
  return *this;
}

Shape boolean(bool value) { return make_shape(Type::kBool, Value::of(value)); }
Shape integer(std::int64_t value) { return make_shape(Type::kInt, Value::of(value)); }
Shape number(double value) { return make_shape(Type::kFloat, Value::of(value)); }
Shape text(const char* value) { return make_shape(Type::kString, Value::of(value)); }
Shape object() { return make_null_shape(Type::kObject); }
Shape any() { return make_null_shape(Type::kAny); }
Shape map() { return make_null_shape(Type::kMap); }
Shape objects() { return make_null_shape(Type::kObjectList); }

Shape words(std::vector<std::string> values) {
  return make_shape(Type::kStringList, to_value(values));
}

Shape number_or_list(double value) { return make_shape(Type::kFloatOrList, Value::of(value)); }

Shape integers(std::vector<std::int64_t> values) {
  Value list = Value::array();
  for (const std::int64_t value : values) {
    list.items.push_back(Value::of(value));
  }
  return make_shape(Type::kIntList, std::move(list));
}

Shape one_of(std::vector<std::string> choices, const char* value) {
  Shape shape = text(value);
  shape.choices = std::move(choices);
  return shape;
}

Shape dtype(const char* value) {
  Shape shape = one_of({"fp32", "fp16", "bf16"}, value);
  shape.spellings = {{"float32", "fp32"},       {"float", "fp32"},      {"torch.float32", "fp32"},
                     {"torch.float", "fp32"},   {"float16", "fp16"},    {"half", "fp16"},
                     {"torch.float16", "fp16"}, {"torch.half", "fp16"}, {"bfloat16", "bf16"},
                     {"torch.bfloat16", "bf16"}};
  return shape;
}

Field& Field::alias(std::string name) {
  aliases.push_back(std::move(name));
  return *this;
}

Field& Field::old_name(std::string name) {
  old_names.push_back(std::move(name));
  return *this;
}

Field& Field::also_off(Value value) {
  off_values.push_back(std::move(value));
  return *this;
}

Field& Field::instead(std::string hint) {
  reason = std::move(hint);
  return *this;
}

Field& Field::derived() {
  derivable = true;
  return *this;
}

Field& Field::removed() {
  removed_upstream = true;
  return *this;
}

Field& Field::on_when_present(bool unless_disabled) {
  presence = unless_disabled ? Presence::kOnUnlessDisabled : Presence::kOn;
  return *this;
}

Field& Field::quiet() {
  frameworks_write_it = true;
  return *this;
}

bool Field::is_pattern() const {
  return path.find('*') != std::string::npos || path.find("[]") != std::string::npos;
}

Value to_value(bool value) { return Value::of(value); }
Value to_value(int value) { return Value::of(static_cast<std::int64_t>(value)); }
Value to_value(std::int64_t value) { return Value::of(value); }
Value to_value(std::uint64_t value) { return Value::of(static_cast<std::int64_t>(value)); }
Value to_value(double value) { return Value::of(value); }
Value to_value(const std::string& value) { return Value::of(value); }

Value to_value(const std::vector<std::string>& value) {
  Value list = Value::array();
  for (const std::string& item : value) {
    list.items.push_back(Value::of(item));
  }
  return list;
}

Value to_value(const std::array<double, 2>& value) {
  return Value::array({Value::of(value[0]), Value::of(value[1])});
}

Value to_value(const std::vector<double>& value) {
  if (value.size() <= 1) {
    return value.empty() ? Value::null() : Value::of(value[0]);
  }
  Value list = Value::array();
  for (const double item : value) {
    list.items.push_back(Value::of(item));
  }
  return list;
}

void from_value(const Value& value, bool& out) { out = value.boolean; }
void from_value(const Value& value, int& out) { out = static_cast<int>(value.integer); }
void from_value(const Value& value, std::int64_t& out) { out = value.integer; }
void from_value(const Value& value, std::uint64_t& out) {
  out = static_cast<std::uint64_t>(value.integer);
}
void from_value(const Value& value, double& out) { out = value.as_double(); }
void from_value(const Value& value, std::string& out) { out = value.text; }

void from_value(const Value& value, std::vector<std::string>& out) {
  out.clear();
  for (const Value& item : value.items) {
    out.push_back(item.text);
  }
}

void from_value(const Value& value, std::array<double, 2>& out) {
  out = {value.items.at(0).as_double(), value.items.at(1).as_double()};
}

void from_value(const Value& value, std::vector<double>& out) {
  out.clear();
  if (value.is_number()) {
    out = {value.as_double()};
  }
  for (const Value& item : value.items) {
    out.push_back(item.as_double());
  }
}

Field& FieldList::add(std::string path, Shape shape, Status status, std::string doc) {
  Field& field = fields_.emplace_back();
  field.path = std::move(path);
  field.shape = std::move(shape);
  field.status = status;
  field.doc = std::move(doc);
  return field;
}

Field& FieldList::section(std::string path, std::string doc) {
  return add(std::move(path), make_null_shape(Type::kSection), Status::kSection, std::move(doc));
}

Field& FieldList::job_section(std::string path, std::string doc) {
  Field& field = section(std::move(path), std::move(doc));
  field.of_job = true;
  return field;
}

Field& FieldList::in_python(std::string path, Shape shape, std::string doc) {
  Field& field = add(std::move(path), std::move(shape), Status::kActs, std::move(doc));
  field.in_python = true;
  return field;
}

Field& FieldList::checked(std::string path, Shape shape, std::string doc) {
  return add(std::move(path), std::move(shape), Status::kActs, std::move(doc));
}

Field& FieldList::no_effect(std::string path, Shape shape, std::string doc, std::string reason) {
  Field& field = add(std::move(path), std::move(shape), Status::kNoEffect, std::move(doc));
  field.reason = std::move(reason);
  return field;
}

Field& FieldList::unavailable(std::string path, Shape shape, std::string doc) {
  return add(std::move(path), std::move(shape), Status::kUnavailable, std::move(doc));
}

Field& FieldList::part(std::string gate, std::string path, Shape shape, std::string doc) {
  Field& field = add(std::move(path), std::move(shape), Status::kPart, std::move(doc));
  field.gate = std::move(gate);
  return field;
}

Field& FieldList::accepted(std::string path, Shape shape, std::string doc, std::string written_by) {
  Field& field = add(std::move(path), std::move(shape), Status::kAccepted, std::move(doc));
  field.reason = std::move(written_by);
  return field;
}

void FieldList::parts(const std::string& gate, const std::string& prefix,
                      const std::vector<Part>& parts) {
  for (const Part& entry : parts) {
    part(gate, prefix + entry.name, entry.shape, entry.doc);
  }
}

}  // namespace shardwise::config
