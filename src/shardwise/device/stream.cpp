#include "shardwise/device/stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace shardwise::device {
namespace {

c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

Event::Event(c10::Device device, bool timed)
    : device_(device),
      event_(device.is_cpu() ? nullptr
                             : std::make_unique<c10::Event>(
                                   device.type(), timed ? c10::EventFlag::BACKEND_DEFAULT
                                                        : c10::EventFlag::PYTORCH_DEFAULT)) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record() {
  if (event_) {
    event_->record(guard_of(device_).getStream(device_));
  }
}

void Event::block_current_stream() {
  if (event_ && event_->was_marked_for_recording()) {
    event_->block(guard_of(device_).getStream(device_));
  }
}

bool Event::reached() const { return !event_ || event_->query(); }

void Event::synchronize() {
  if (event_ && event_->was_marked_for_recording()) {
    event_->synchronize();
  }
}

double Event::seconds_since(const Event& earlier) const {
  return event_ ? earlier.event_->elapsedTime(*event_) / 1e3 : 0.0;
}

SideStream::SideStream(c10::Device device) {
  if (!device.is_cpu()) {
    stream_ = guard_of(device).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
}

SideStream::Guard::Guard(const SideStream& stream) {
  if (stream.stream_) {
    previous_ = guard_of(stream.stream_->device()).exchangeStream(*stream.stream_);
  }
}

SideStream::Guard::~Guard() {
  if (previous_) {
    guard_of(previous_->device()).exchangeStream(*previous_);
  }
}

void* current_stream_handle(c10::Device device) {
  if (device.is_cpu()) {
    return nullptr;
  }
  return guard_of(device).getStreamNativeHandle(guard_of(device).getStream(device));
}

}  // namespace shardwise::device
