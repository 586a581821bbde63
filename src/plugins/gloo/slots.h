// Which messages belong together: Gloo matches a send and a receive of two ranks by a *slot*, 64
// bits of which the highest eight say whose it is. Gloo's own collectives use 1 to 8.
#pragma once

#include <cstdint>

#include "tutti/request.h"

namespace tutti::gloo_backend {

namespace detail {
inline constexpr std::uint64_t kPhases = 8;  // of one collective
constexpr std::uint64_t slot(std::uint64_t owner, std::uint64_t number) noexcept {
  return owner << 56 | (number & ((std::uint64_t{1} << 56) - 1));
}
}  // namespace detail

/// Of what moves in phase `phase` (below 8) of a collective.
inline std::uint64_t slot_of_phase(const Request& collective, int phase) noexcept {
  return detail::slot(0x40, collective.seq * detail::kPhases + static_cast<std::uint64_t>(phase));
}
inline std::uint64_t slot_of_message(const Request& message) noexcept {
  return detail::slot(0x41, message.message.number);
}
/// Of the messages in a Mailbox.
inline constexpr std::uint64_t kMailSlot = detail::slot(0x42, 0);
inline constexpr std::uint64_t kNeverSent = detail::slot(0x43, 0);

}  // namespace tutti::gloo_backend
