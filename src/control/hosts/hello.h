// What the two ends of a connection say to each other first: docs/wire.md. Of fixed size, so that
// neither end reads more than that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/roster.h"
#include "tutti/request.h"

namespace tutti::control {

inline constexpr std::uint32_t kWireVersion = 1;

/// What a rank's listener wants to hear: known to the members of its world.
using Token = std::array<std::byte, 16>;

enum class Role : std::uint32_t {
  relay,  ///< that of its host, which has facts and votes to tell
  data,   ///< one lane of a group
};

struct Hello {
  Role role = Role::relay;
  Token token = {};  ///< of the rank that is called
  WorldRank from{0}, to{0};
  GroupId group = 0;      ///< data
  std::uint8_t lane = 0;  ///< data
};
inline constexpr std::size_t kHelloBytes = 64;
using HelloBytes = std::array<std::byte, kHelloBytes>;

enum class Answer : std::uint32_t {
  welcome,
  crossing,  ///< data: the rank that is called is calling for the same, and its call counts
  refused,   ///< it is not that rank, or speaks another version
};
inline constexpr std::size_t kAnswerBytes = 16;
using AnswerBytes = std::array<std::byte, kAnswerBytes>;

HelloBytes encode(const Hello& hello) noexcept;
AnswerBytes encode(Answer answer) noexcept;
/// None: nothing that this version says in a world of that size.
std::optional<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes, int world_size);
std::optional<Answer> decode_answer(std::span<const std::byte, kAnswerBytes> bytes);

}  // namespace tutti::control
