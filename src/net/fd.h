// A file descriptor that closes itself.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>

namespace tutti::net {

/// Of a listener. The kernel takes the smaller of this and net.core.somaxconn.
inline constexpr int kBacklog = 4096;

/// Owns one descriptor. Every descriptor of the library is made with CLOEXEC.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), is_private_(std::exchange(other.is_private_, false)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      is_private_ = std::exchange(other.is_private_, false);
    }
    return *this;
  }
  ~Fd() { reset(); }

  /// What `open` returns (-1: it failed, errno says why), as a *private* descriptor: a child that
  /// the program forks does not hold it open, not even for the moment before it could be told. A
  /// socket must be private: as long as a helper process has it, its other end never sees our
  /// death.
  static Fd open_private(const std::function<int()>& open);

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Gives the descriptor away without closing it; it is private no longer.
  int release() noexcept;
  void reset() noexcept;
  /// A second descriptor of the same open file (kSystem when the limit is reached).
  Fd duplicate() const;

 private:
  int fd_ = -1;
  bool is_private_ = false;
};

/// Standard descriptors that are closed become ones that are empty and cannot be written: nothing
/// else may get their numbers, or a program would print into it. Throws kSystem.
void hold_standard_descriptors();

/// Makes room for `wanted` more descriptors, as far as the hard limit allows: raises RLIMIT_NOFILE.
/// Throws kSystem where not even `least` more can be opened; `what` needs them.
void require_descriptors(std::size_t least, std::size_t wanted, std::string_view what);

}  // namespace tutti::net
