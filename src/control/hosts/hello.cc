#include "control/hosts/hello.h"

#include "net/frame.h"

namespace tutti::control {

namespace {

constexpr std::uint64_t kMagic = 0x3169684954545554;  // "TUTTIhi1"

}  // namespace

net::Claim claim_of(const Hello& hello) noexcept {
  return {.purpose = static_cast<net::Purpose>(hello.role),
          .from = hello.from.value,
          .to = hello.to.value,
          .group = hello.group,
          .lane = hello.lane};
}

std::optional<Hello> hello_of(const net::Claim& claim, int world_size) noexcept {
  const auto is_rank = [world_size](int rank) { return rank >= 0 && rank < world_size; };
  if (claim.purpose == net::Purpose::store || !is_rank(claim.from) || !is_rank(claim.to) ||
      claim.lane > UINT8_MAX)
    return std::nullopt;
  return Hello{.role = static_cast<Role>(claim.purpose),
               .from = WorldRank(claim.from),
               .to = WorldRank(claim.to),
               .group = claim.group,
               .lane = static_cast<std::uint8_t>(claim.lane)};
}

/// An answer stands in each byte of a word, so that one that was changed is none.
constexpr std::uint32_t kEveryByte = 0x01010101;

AnswerBytes encode(Answer answer) noexcept {
  AnswerBytes bytes{};
  std::size_t at = 0;
  const auto put = [&](std::uint64_t value, int byte_count) {  // takes no memory
    for (int i = 0; i < byte_count; ++i) bytes[at++] = static_cast<std::byte>(value >> (8 * i));
  };
  put(kMagic, 8);
  put(kWireVersion, 4);
  put(static_cast<std::uint32_t>(answer) * kEveryByte, 4);
  return bytes;
}

std::optional<Answer> decode_answer(std::span<const std::byte, kAnswerBytes> bytes) {
  net::ByteReader in({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (in.u64() != kMagic || in.u32() != kWireVersion) return std::nullopt;
  const std::uint32_t word = in.u32(), answer = word / kEveryByte;
  if (answer > static_cast<std::uint32_t>(Answer::refused)) return std::nullopt;
  if (word != answer * kEveryByte) return std::nullopt;
  return static_cast<Answer>(answer);
}

}  // namespace tutti::control
