#include "control/hosts/hello.h"

#include <algorithm>
#include <string>

#include "net/frame.h"

namespace tutti::control {

namespace {

constexpr std::uint64_t kMagic = 0x3169684954545554;  // "TUTTIhi1"

}  // namespace

namespace {

constexpr net::Purpose purpose_of(Role role) noexcept {
  switch (role) {
    case Role::relay:
      return net::Purpose::line;
    case Role::data:
      return net::Purpose::data;
    case Role::note:
      return net::Purpose::note;
  }
  return net::Purpose::store;
}

constexpr std::optional<Role> role_of(net::Purpose purpose) noexcept {
  switch (purpose) {
    case net::Purpose::store:
      return std::nullopt;
    case net::Purpose::line:
      return Role::relay;
    case net::Purpose::data:
      return Role::data;
    case net::Purpose::note:
      return Role::note;
  }
  return std::nullopt;
}

}  // namespace

net::Claim claim_of(const Hello& hello) noexcept {
  return {.purpose = purpose_of(hello.role),
          .from = hello.from.value,
          .to = hello.to.value,
          .group = hello.group,
          .lane = hello.lane};
}

std::optional<Hello> hello_of(const net::Claim& claim, int world_size) noexcept {
  const auto is_rank = [world_size](int rank) { return rank >= 0 && rank < world_size; };
  const std::optional<Role> role = role_of(claim.purpose);
  if (!role || !is_rank(claim.from) || !is_rank(claim.to) || claim.lane > UINT8_MAX)
    return std::nullopt;
  return Hello{.role = *role,
               .from = WorldRank(claim.from),
               .to = WorldRank(claim.to),
               .group = claim.group,
               .lane = static_cast<std::uint8_t>(claim.lane)};
}

AnswerBytes encode(Answer answer) noexcept {
  std::string text;
  net::ByteWriter out(&text);
  out.u64(kMagic);
  out.u32(kWireVersion);
  out.u32(static_cast<std::uint32_t>(answer));
  AnswerBytes bytes{};
  std::ranges::copy(net::bytes_of(text), bytes.begin());
  return bytes;
}

std::optional<Answer> decode_answer(std::span<const std::byte, kAnswerBytes> bytes) {
  net::ByteReader in({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (in.u64() != kMagic || in.u32() != kWireVersion) return std::nullopt;
  const std::uint32_t answer = in.u32();
  if (answer > static_cast<std::uint32_t>(Answer::refused)) return std::nullopt;
  return static_cast<Answer>(answer);
}

}  // namespace tutti::control
