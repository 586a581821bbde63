#include "net/handshake.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/random.h"
#include "net/frame.h"

namespace tutti::net {
namespace {

constexpr std::uint64_t kMagic = 0x3173686954545554;  // "TUTTihs1"

/// In a reply: whether it goes on.
enum class Status : std::uint32_t { go_on, other_version, other_level, refused };

bool begins_as_ours(std::span<const std::byte> bytes) {
  return ByteReader(text_of(bytes)).u64() == kMagic;
}

}  // namespace

/// What a hello and a reply begin with.
struct Handshake::Greeting {
  std::uint32_t version = kHandshakeVersion;
  Level level = Level::none;
  Status status = Status::go_on;
  Claim claim = {};
  Nonce nonce = {};

  std::string encode() const;
  /// None: it is no greeting of Tutti. In another version only that stands where it stands here.
  static std::optional<Greeting> decode(std::span<const std::byte> bytes);
};

std::string Handshake::Greeting::encode() const {
  std::string text;
  ByteWriter out(&text);
  out.u64(kMagic);
  out.u32(version);
  out.u32(static_cast<std::uint32_t>(level));
  out.u32(static_cast<std::uint32_t>(status));
  out.u32(static_cast<std::uint32_t>(claim.purpose));
  out.u32(static_cast<std::uint32_t>(claim.from));
  out.u32(static_cast<std::uint32_t>(claim.to));
  out.u64(claim.group);
  out.u32(claim.lane);
  out.u32(0);
  text.append(text_of(nonce));
  return text;
}

std::optional<Handshake::Greeting> Handshake::Greeting::decode(std::span<const std::byte> bytes) {
  ByteReader in(text_of(bytes));
  if (in.u64() != kMagic) return std::nullopt;
  Greeting greeting;
  greeting.version = in.u32();
  if (greeting.version != kHandshakeVersion) return greeting;
  const std::uint32_t level = in.u32(), status = in.u32(), purpose = in.u32();
  if (level > static_cast<std::uint32_t>(Level::integrity) ||
      status > static_cast<std::uint32_t>(Status::refused) ||
      purpose > static_cast<std::uint32_t>(Purpose::note))
    return std::nullopt;
  greeting.level = static_cast<Level>(level);
  greeting.status = static_cast<Status>(status);
  greeting.claim.purpose = static_cast<Purpose>(purpose);
  greeting.claim.from = static_cast<int>(in.u32());
  greeting.claim.to = static_cast<int>(in.u32());
  greeting.claim.group = in.u64();
  greeting.claim.lane = in.u32();
  if (in.u32() != 0) return std::nullopt;
  std::ranges::copy(bytes.last(greeting.nonce.size()), greeting.nonce.begin());
  return greeting;
}

// ---- both ends ---------------------------------------------------------------------------------

Handshake Handshake::calling(const Claim& claim, Level level, const Key& key) {
  Handshake made(true, level);
  made.claim_ = claim;
  made.key_ = key;
  Greeting hello{.level = level, .claim = claim};
  fill_random(hello.nonce.data(), hello.nonce.size());
  made.say(hello);
  std::copy_n(made.out_.begin(), kHelloBytes, made.said_.begin());
  made.to_send_ = kHelloBytes;
  made.due_ = kReplyBytes;
  if (!is_one_way(claim.purpose)) return made;
  made.agree(key);
  std::ranges::copy(made.proof(true), made.out_.begin() + kHelloBytes);
  made.to_send_ += kProofBytes;
  made.outcome_ = Outcome::proved;
  return made;
}

Handshake Handshake::called(Level level, KeyFor key_for) {
  Handshake made(false, level);
  made.key_for_ = std::move(key_for);
  made.due_ = kHelloBytes;
  return made;
}

std::size_t Handshake::wants() const noexcept {
  return outcome_ == Outcome::going_on ? due_ - received_ : 0;
}

std::span<const std::byte> Handshake::unsent() const noexcept {
  return std::span(out_).first(to_send_).subspan(sent_);
}

void Handshake::say(const Greeting& greeting) {
  out_ = {};
  std::ranges::copy(bytes_of(greeting.encode()), out_.begin());
  sent_ = 0;
}

void Handshake::receive(std::span<const std::byte> bytes) {
  const auto taken = bytes.first(std::min(bytes.size(), wants()));
  std::ranges::copy(taken, std::span(in_).subspan(received_).begin());
  received_ += taken.size();
  // Who speaks something else may never say as much as a greeting has.
  if (awaits_greeting() && received_ >= sizeof kMagic && !begins_as_ours(in_))
    outcome_ = Outcome::strange;
  if (outcome_ != Outcome::going_on || received_ < due_) return;
  received_ = 0;
  if (is_caller_) return hear_reply();
  has_claim_ ? hear_confirm() : hear_hello();
}

/// What is wrong with the other end's greeting, if anything.
Handshake::Outcome Handshake::judge(const std::optional<Greeting>& greeting) {
  if (!greeting) return Outcome::strange;
  other_version_ = greeting->version;
  if (greeting->version != kHandshakeVersion) return Outcome::other_version;
  other_level_ = greeting->level;
  return greeting->level == level_ ? Outcome::going_on : Outcome::other_level;
}

/// Both have said all that is to be proved.
void Handshake::agree(const Key& key) {
  session_ = derive(key.bytes(), digest_of(said_), "tutti connection");
}

Digest Handshake::proof(bool of_caller) const {
  const Key key = derive(session_->bytes(), {}, of_caller ? "caller's proof" : "called's proof");
  return proof_of(said_, key);
}

FrameKeys Handshake::frame_keys() const {
  const Key from_caller = derive(session_->bytes(), {}, "caller's frames");
  const Key from_called = derive(session_->bytes(), {}, "called's frames");
  return is_caller_ ? FrameKeys{from_caller, from_called} : FrameKeys{from_called, from_caller};
}

Handshake::Nonce Handshake::nonce() const noexcept {
  Nonce nonce;
  std::ranges::copy(std::span(said_).first(kHelloBytes).last(nonce.size()), nonce.begin());
  return nonce;
}

// ---- one end -----------------------------------------------------------------------------------

void Handshake::hear_hello() {
  const auto hello = Greeting::decode(std::span(in_).first(kHelloBytes));
  outcome_ = judge(hello);
  if (outcome_ == Outcome::strange) return;
  Greeting reply{.level = level_, .claim = hello->claim};
  has_claim_ = outcome_ != Outcome::other_version;
  claim_ = hello->claim;
  std::optional<Key> key;
  if (outcome_ == Outcome::going_on && !(key = key_for_(claim_))) outcome_ = Outcome::refused;
  if (outcome_ == Outcome::other_version) reply.status = Status::other_version;
  if (outcome_ == Outcome::other_level) reply.status = Status::other_level;
  if (outcome_ == Outcome::refused) reply.status = Status::refused;
  fill_random(reply.nonce.data(), reply.nonce.size());
  say(reply);
  to_send_ = is_one_way(claim_.purpose) ? 0 : kReplyBytes;
  if (!key) return;
  due_ = kProofBytes;
  std::copy_n(in_.begin(), kHelloBytes, said_.begin());
  if (is_one_way(claim_.purpose)) return agree(*key);
  std::copy_n(out_.begin(), kHelloBytes, said_.begin() + kHelloBytes);
  agree(*key);
  std::ranges::copy(proof(false), out_.begin() + kHelloBytes);
}

void Handshake::hear_reply() {
  const auto reply = Greeting::decode(std::span(in_).first(kHelloBytes));
  outcome_ = judge(reply);
  if (outcome_ != Outcome::going_on) return;
  if (reply->status == Status::refused) {
    outcome_ = Outcome::refused;
    return;
  }
  if (reply->status != Status::go_on || reply->claim != claim_) {
    outcome_ = Outcome::strange;
    return;
  }
  std::copy_n(in_.begin(), kHelloBytes, said_.begin() + kHelloBytes);
  agree(key_);
  const bool has_proved = is_same(std::span(in_).last(kProofBytes), proof(false));
  outcome_ = has_proved ? Outcome::proved : Outcome::unproved;
  // Zeros prove nothing, and tell the other end that it was not believed.
  std::ranges::copy(has_proved ? proof(true) : Digest{}, out_.begin());
  to_send_ = kProofBytes;
  sent_ = 0;
}

void Handshake::hear_confirm() {
  const bool has_proved = is_same(std::span(in_).first(kProofBytes), proof(true));
  outcome_ = has_proved ? Outcome::proved : Outcome::unproved;
}

}  // namespace tutti::net
