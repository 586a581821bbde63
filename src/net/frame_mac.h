// The marks of the frames that go one way over one connection: who does not know its key cannot
// change, drop, repeat or reorder a frame unseen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "net/keys.h"

struct evp_cipher_ctx_st;

namespace tutti::net {

inline constexpr std::size_t kFrameTagBytes = 16;
using FrameTag = std::array<std::byte, kFrameTagBytes>;

/// AES-256-GMAC. Each frame has a number, which counts from 0 at both ends. One thread.
class FrameMac {
 public:
  explicit FrameMac(const Key& key);
  ~FrameMac();
  FrameMac(FrameMac&& other) noexcept;

  /// The next bytes of the frame.
  void add(std::span<const std::byte> part);
  /// Of what was added; the next frame begins.
  FrameTag finish();
  /// The last tag was made in vain, and nobody has seen it: the next frame gets its number.
  void take_back() noexcept { --number_; }

 private:
  void begin();
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const noexcept;
  };
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  std::uint64_t number_ = 0;
  bool has_begun_ = false;
};

}  // namespace tutti::net
