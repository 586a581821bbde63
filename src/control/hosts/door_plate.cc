#include "control/hosts/door_plate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>

#include "tutti/error.h"

namespace tutti::control {

namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte each : bytes) text += fmt::format("{:02x}", each);
  return text;
}

std::optional<net::Digest> from_hex(std::string_view text) {
  net::Digest bytes;
  if (text.size() != 2 * bytes.size()) return std::nullopt;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::uint8_t value = 0;
    const char* const digits = text.data() + 2 * i;
    if (std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2) return std::nullopt;
    bytes[i] = static_cast<std::byte>(value);
  }
  return bytes;
}

/// All that is proved.
std::string body_of(const DoorPlate& plate) {
  return fmt::format("{}\n{}\n{}\n", plate.address.text(), net::name_of(plate.level),
                     hex(plate.public_key));
}

net::Digest proof_of_plate(std::string_view body, WorldRank rank, const net::Security& security) {
  const net::Key key = net::derive(security.secret.bytes(), {}, "tutti door plate");
  return net::proof_of(net::bytes_of(fmt::format("{}\n{}", rank.value, body)), key);
}

}  // namespace

std::string encode(const DoorPlate& plate, WorldRank rank, const net::Security& security) {
  const std::string body = body_of(plate);
  return body + hex(proof_of_plate(body, rank, security));
}

std::optional<DoorPlate> decode_plate(const std::string& text, WorldRank rank,
                                      const net::Security& security) {
  std::vector<std::string_view> lines;
  std::string_view rest = text;
  for (std::size_t end = 0; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1))
    lines.push_back(rest.substr(0, end));
  const auto proof = from_hex(rest);
  if (lines.size() != 3 || !proof) return std::nullopt;
  const auto address = net::TcpAddress::parse(lines[0]);
  const auto level = net::level_of(lines[1]);
  const auto public_key = from_hex(lines[2]);
  if (!address || !level || !public_key) return std::nullopt;
  const std::string_view body(text.data(), text.size() - rest.size());
  return DoorPlate{*address, *level, *public_key,
                   net::is_same(*proof, proof_of_plate(body, rank, security))};
}

DoorKeys::DoorKeys(const net::Security& security, const net::KeyPair& own,
                   const std::vector<std::string>& plates)
    : security_(security), own_(own), keys_(plates.size()) {
  std::string all;
  for (const std::string& plate : plates) all += fmt::format("{}:{}", plate.size(), plate);
  all_plates_ = net::digest_of(net::bytes_of(all));
}

const net::Key& DoorKeys::with(WorldRank rank, const net::Digest& public_key) {
  std::optional<net::Key>& key = keys_[rank.index()];
  if (key) return *key;
  net::Key agreed;
  if (security_.level >= net::Level::opportunistic) {
    const auto made = own_.agree_with(public_key);
    if (!made) {
      throw Error(ErrorCode::kUnauthenticated,
                  fmt::format("rank {} has said a public key that is none", rank.value),
                  {.culprits = {rank.value}});
    }
    agreed = *made;
  }
  std::array<std::byte, 2 * sizeof(net::Digest)> both;
  std::ranges::copy(security_.secret.bytes(), both.begin());
  std::ranges::copy(agreed.bytes(), both.begin() + sizeof(net::Digest));
  key = net::derive(both, all_plates_, "tutti door");
  net::wipe(both);
  return *key;
}

}  // namespace tutti::control
