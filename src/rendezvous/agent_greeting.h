// What the agent of `tutti run` says to whoever connects to TUTTI_AGENT and may: eight bytes,
// with the
// board's descriptor attached to them. From then on the connection speaks the store protocol.
// Whoever
// may not (another user, not below the launcher) sees the connection closed without a byte.
#pragma once

#include <array>
#include <cstddef>

namespace tutti::rendezvous {

inline constexpr std::array<std::byte, 8> kAgentGreeting = {
    std::byte{'t'}, std::byte{'u'}, std::byte{'t'}, std::byte{'t'},
    std::byte{'i'}, std::byte{'a'}, std::byte{'g'}, std::byte{'1'}};

}  // namespace tutti::rendezvous
