#include "shardwise/params/unit.h"

#include <ATen/core/TensorBase.h>

namespace shardwise::params {

const char* tier_name(Tier tier) {
  switch (tier) {
    case Tier::kDevice: return "device";
    case Tier::kPinnedHost: return "pinned_host";
    case Tier::kFile: return "file";
  }
  return "";
}

std::int64_t ShardHandle::bytes() const {
  return data_.defined() ? static_cast<std::int64_t>(data_.nbytes()) : 0;
}

std::int64_t Segment::bytes() const {
  return layout.numel * static_cast<std::int64_t>(c10::elementSize(dtype));
}

at::Tensor Segment::view_of(const Parameter& parameter) const {
  return storage.view(parameter.sizes, parameter.strides, parameter.place.begin);
}

bool Segment::holds(const Parameter& parameter) const {
  return parameter.tensor.sizes() == at::IntArrayRef(parameter.sizes) &&
         storage.holds(parameter.tensor);
}

void Segment::remember_versions() {
  versions.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    versions[i] = static_cast<std::uint32_t>(parameters[i].tensor._version());
  }
}

const Parameter* Segment::changed_in_place() const {
  for (std::size_t i = 0; i < versions.size(); ++i) {
    if (versions[i] != static_cast<std::uint32_t>(parameters[i].tensor._version())) {
      return &parameters[i];
    }
  }
  return nullptr;
}

std::int64_t Unit::numel() const {
  std::int64_t total = 0;
  for (const auto& segment : segments) {
    total += segment->layout.numel;
  }
  return total;
}

}  // namespace shardwise::params
