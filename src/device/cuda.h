// CUDA, as far as Tutti uses it: the driver's functions, opened while the program runs.
//
// No header of CUDA is needed to build this, and no library of it to run the rest. The driver's
// library belongs to the driver itself, so that it is there wherever a device can be used; streams,
// events and memory are the same as the run-time's (cudaStream_t is CUstream).
//
// Threads   Everything: any thread. A call needs its device *current* in its thread: `Current`.
// Errors    kUnsupported: there is no driver, no device, the driver is too old, or the process was
//           forked after CUDA was used. kSystem: a function of CUDA failed; names it and its error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/library.h"
#include "tutti/types.h"

namespace tutti::device {

/// Where a pointer's memory is.
struct Place {
  enum class Kind : std::uint8_t {
    host,     ///< CUDA does not know it
    pinned,   ///< of the host, known to CUDA
    device,   ///< of the device `index`
    managed,  ///< moves between host and device
  };
  Kind kind = Kind::host;
  int index = 0;
};

class Cuda {
 public:
  /// The one of this process; opened and initialised by the first call. `file`: the setting
  /// cuda_library; only the first one counts.
  static const Cuda& open(const std::string& file);
  /// Whether this host seems to have devices that this process may use: costs a look at /dev, and
  /// initialises nothing. `file`: as above. `visible`: CUDA_VISIBLE_DEVICES, or null.
  static bool seems_usable(const std::string& file, const std::string* visible);

  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  int driver_version() const noexcept { return driver_version_; }  ///< 13000 is 13.0
  int device_count() const noexcept { return device_count_; }
  std::string bus_id(int index) const;  ///< "0000:3b:00.0"

  Place place_of(const void* pointer) const;
  /// Whether what `stream` is given is recorded into a graph, and not run.
  bool is_capturing(Stream stream) const;
  /// Nothing: a default stream, which is of the device that is current, or CUDA does not say.
  std::optional<int> device_of(Stream stream) const;

  /// Copies in order with `stream`, between any two places; one end may be pageable memory of the
  /// host, with which the call blocks.
  void copy(void* to, const void* from, std::size_t byte_count, Stream stream) const;
  /// What `stream` is given next waits for `event`.
  void wait(Stream stream, void* event) const;

  /// Device memory, of the device that is current. free waits until nothing uses it; null: nothing.
  void* allocate(std::size_t byte_count) const;
  void free(void* memory) const noexcept;
  void* try_pinned(std::size_t byte_count) const noexcept;  ///< null: there is none
  void free_pinned(void* memory) const noexcept;            ///< a device current, too
  std::size_t free_bytes() const;                           ///< of the current device

 private:
  friend class Current;
  friend class Event;
  friend class OwnStream;
  explicit Cuda(const std::string& file);

  void* context(int index) const;
  void* current_context() const;
  template <class Call>
  void in_context(void* context, Call&& call) const noexcept;
  std::optional<int> device_of(void* context) const noexcept;
  /// `context`: in which it was called; null: the current one.
  void check(int result, const char* function, void* context = nullptr) const;
  std::string text_of(int result) const;

  struct Functions;
  const Library library_;
  std::unique_ptr<const Functions> call_;
  int driver_version_ = 0;
  int device_count_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<void*> contexts_;  // by device; mutex_; retained for ever
};

/// Makes a device current in this thread while it lives.
class Current {
 public:
  Current(const Cuda& cuda, int index);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Cuda& cuda_;
};

/// A point in a stream, of the device that was current when it was made. Made once, recorded often.
class Event {
 public:
  explicit Event(const Cuda& cuda);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  void record(Stream stream);
  /// Whether the stream has come to it; true if it was never recorded.
  /// Errors  What was given to the stream before it failed.
  bool done() const;
  /// Until the stream has come to it, or `stop()` says so; looks at the device again and again.
  void wait_on_host(const std::function<bool()>& stop) const;
  /// What `stream` is given next waits for it.
  void order(Stream stream) const { cuda_->wait(stream, handle_); }

 private:
  const Cuda* cuda_;
  void* context_;
  void* handle_ = nullptr;
};

/// A stream of our own, of the device that was current when it was made, which does not wait for
/// CUDA's default stream.
class OwnStream {
 public:
  explicit OwnStream(const Cuda& cuda);
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream();

  Stream stream() const noexcept { return {handle_}; }

 private:
  const Cuda& cuda_;
  void* const context_;
  void* handle_ = nullptr;
};

}  // namespace tutti::device
