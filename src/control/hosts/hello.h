// What a connection between ranks of two hosts is for, and what the rank that is called says to it:
// docs/wire.md. Both ends have proved who they are before (net/handshake.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/roster.h"
#include "net/handshake.h"
#include "tutti/request.h"

namespace tutti::control {

inline constexpr std::uint32_t kWireVersion = 7;

/// The purposes of a connection that a door is for.
enum class Role : std::uint32_t {
  /// That of its host, which has facts and votes to tell.
  relay = static_cast<std::uint32_t>(net::Purpose::line),
  data = static_cast<std::uint32_t>(net::Purpose::data),  ///< one lane of a group
  /// Of a host of which nobody is left: goodbyes and who has left, which nobody answers.
  note = static_cast<std::uint32_t>(net::Purpose::note),
};

struct Hello {
  Role role = Role::relay;
  WorldRank from{0}, to{0};
  GroupId group = 0;      ///< data
  std::uint8_t lane = 0;  ///< data
};
net::Claim claim_of(const Hello& hello) noexcept;
/// None: nothing that a rank claims in a world of that size.
std::optional<Hello> hello_of(const net::Claim& claim, int world_size) noexcept;

enum class Answer : std::uint32_t {
  welcome,
  crossing,  ///< data: the rank that is called is calling for the same, and its call counts
  refused,   ///< there is such a connection
};
inline constexpr std::size_t kAnswerBytes = 16;
using AnswerBytes = std::array<std::byte, kAnswerBytes>;

AnswerBytes encode(Answer answer) noexcept;
std::optional<Answer> decode_answer(std::span<const std::byte, kAnswerBytes> bytes);

}  // namespace tutti::control
