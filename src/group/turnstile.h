// At most one thread submits to a group: a second one would make the order differ between ranks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "tutti/request.h"

namespace tutti::group {

/// One word that says who is inside: the call site, packed (pointers have 48 bits), or 0.
class Turnstile {
 public:
  /// 0 if the caller is inside now, else the packed site of whoever is.
  std::uint64_t try_enter(const Where& where) noexcept {
    std::uint64_t inside = 0;
    word_.compare_exchange_strong(inside, pack(where), std::memory_order_acquire,
                                  std::memory_order_relaxed);
    return inside;
  }
  void leave() noexcept { word_.store(0, std::memory_order_release); }

  static std::uint64_t pack(const Where& where) noexcept {
    const auto line = static_cast<std::uint64_t>(std::clamp(where.line, 0, 0xfffe)) + 1;
    return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(where.file)) << 16 | line;
  }
  static Where unpack(std::uint64_t word) noexcept {
    return {reinterpret_cast<const char*>(static_cast<std::uintptr_t>(word >> 16)),
            static_cast<int>(word & 0xffff) - 1};
  }

 private:
  std::atomic<std::uint64_t> word_{0};
};

/// Inside the turnstile for as long as it lives.
class Turn {
 public:
  /// Throws `error(why)`, which names the other call's site, if another thread is inside.
  template <class MakeError>
  Turn(Turnstile& turnstile, const Where& where, MakeError&& error) : turnstile_(turnstile) {
    if (const std::uint64_t inside = turnstile_.try_enter(where))
      throw error(taken_by(Turnstile::unpack(inside)));
  }
  ~Turn() { turnstile_.leave(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  static std::string taken_by(const Where& holder);
  Turnstile& turnstile_;
};

}  // namespace tutti::group
