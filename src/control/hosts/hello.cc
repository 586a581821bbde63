#include "control/hosts/hello.h"

#include <algorithm>
#include <string>

#include "net/frame.h"

namespace tutti::control {

namespace {

constexpr std::uint64_t kMagic = 0x3169684954545554;  // "TUTTIhi1"

template <class Bytes>
Bytes padded(const std::string& text) noexcept {
  Bytes bytes{};
  std::transform(text.begin(), text.end(), bytes.begin(),
                 [](char each) { return static_cast<std::byte>(each); });
  return bytes;
}

std::string_view text_of(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

constexpr std::size_t kTokenAt = 16;
constexpr std::size_t kRestAt = kTokenAt + sizeof(Token);

}  // namespace

HelloBytes encode(const Hello& hello) noexcept {
  std::string text;
  net::ByteWriter out(&text);
  out.u64(kMagic);
  out.u32(kWireVersion);
  out.u32(static_cast<std::uint32_t>(hello.role));
  text.append(text_of(hello.token));
  out.u64(hello.group);
  out.u32(static_cast<std::uint32_t>(hello.from.value));
  out.u32(static_cast<std::uint32_t>(hello.to.value));
  out.u32(hello.lane);
  return padded<HelloBytes>(text);
}

AnswerBytes encode(Answer answer) noexcept {
  std::string text;
  net::ByteWriter out(&text);
  out.u64(kMagic);
  out.u32(kWireVersion);
  out.u32(static_cast<std::uint32_t>(answer));
  return padded<AnswerBytes>(text);
}

std::optional<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes, int world_size) {
  net::ByteReader head(text_of(bytes.first(kTokenAt))), rest(text_of(bytes.subspan(kRestAt)));
  if (head.u64() != kMagic || head.u32() != kWireVersion) return std::nullopt;
  const std::uint32_t role = head.u32();
  if (role > static_cast<std::uint32_t>(Role::data)) return std::nullopt;
  Hello hello{.role = static_cast<Role>(role)};
  std::copy_n(bytes.begin() + kTokenAt, hello.token.size(), hello.token.begin());
  hello.group = rest.u64();
  const std::uint32_t from = rest.u32(), to = rest.u32(), lane = rest.u32();
  const auto ranks = static_cast<std::uint32_t>(world_size);
  if (from >= ranks || to >= ranks || lane > UINT8_MAX) return std::nullopt;
  hello.from = WorldRank(static_cast<int>(from));
  hello.to = WorldRank(static_cast<int>(to));
  hello.lane = static_cast<std::uint8_t>(lane);
  return hello;
}

std::optional<Answer> decode_answer(std::span<const std::byte, kAnswerBytes> bytes) {
  net::ByteReader in(text_of(bytes));
  if (in.u64() != kMagic || in.u32() != kWireVersion) return std::nullopt;
  const std::uint32_t answer = in.u32();
  if (answer > static_cast<std::uint32_t>(Answer::refused)) return std::nullopt;
  return static_cast<Answer>(answer);
}

}  // namespace tutti::control
