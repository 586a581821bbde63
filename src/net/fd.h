// A file descriptor that closes itself.
#pragma once

#include <utility>

namespace tutti::net {

/// Owns one descriptor. Every descriptor of the library is made with CLOEXEC.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Gives the descriptor away without closing it.
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept;
  /// A second descriptor of the same open file (kSystem when the limit is reached).
  Fd duplicate() const;

 private:
  int fd_ = -1;
};

}  // namespace tutti::net
