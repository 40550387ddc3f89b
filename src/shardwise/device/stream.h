// Streams and events without a CUDA header: the same code runs on the CPU, where a stream is
// nothing and an event has always happened.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace c10 {
struct Event;
}

namespace shardwise::device {

// A point in a stream's work. Not copyable; record() may be called again.
class Event {
 public:
  // A timed event costs the device a little more and can tell the time between two marks.
  explicit Event(c10::Device device, bool timed = false);
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;

  // Marks the present end of the current stream of the device.
  void record();
  // Work launched later on the current stream waits for the mark. Never blocks the host.
  void block_current_stream();
  // True once the mark has been passed (always true on the CPU and before the first record).
  bool reached() const;
  // Blocks the host until the mark has been passed.
  void synchronize();
  // Seconds between two reached marks of timed events; 0 on the CPU.
  double seconds_since(const Event& earlier) const;

 private:
  c10::Device device_;
  std::unique_ptr<c10::Event> event_;  // null on the CPU
};

// When work ran on a device.
struct Span {
  explicit Span(c10::Device device) : begin(device, /*timed=*/true), end(device, /*timed=*/true) {}
  Event begin;
  Event end;
};

// A stream beside the compute stream, and a guard that makes it current. On the CPU both do
// nothing.
class SideStream {
 public:
  explicit SideStream(c10::Device device);

  class Guard {
   public:
    explicit Guard(const SideStream& stream);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::optional<c10::Stream> previous_;
  };

 private:
  friend class Guard;
  std::optional<c10::Stream> stream_;
};

// The current stream's handle (cudaStream_t) for torch-free kernels; null on the CPU.
void* current_stream_handle(c10::Device device);

}  // namespace shardwise::device
