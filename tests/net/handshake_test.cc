// Keys against the vectors of their standards, and what a handshake makes of ends that are not what
// they say: every truncation, every changed bit, replay, reflection, other secrets and levels.
#include "net/handshake.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "net/frame.h"
#include "net/frame_mac.h"
#include "net/keys.h"

namespace tutti::net {
namespace {

using Outcome = Handshake::Outcome;
using Bytes = std::vector<std::byte>;

Bytes from_hex(const std::string& hex) {
  Bytes bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

Digest digest_from_hex(const std::string& hex) {
  Digest digest{};
  std::ranges::copy(from_hex(hex), digest.begin());
  return digest;
}

Bytes copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

TEST(Keys, DeriveAsRfc5869Says) {
  const Bytes secret(22, std::byte{0x0b});
  const Bytes salt = from_hex("000102030405060708090a0b0c");
  std::string info;
  for (int i = 0xf0; i <= 0xf9; ++i) info += static_cast<char>(i);
  EXPECT_EQ(copy(derive(secret, salt, info).bytes()),
            from_hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"));
  // The third case: no salt, no purpose.
  EXPECT_EQ(copy(derive(secret, {}, "").bytes()),
            from_hex("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"));
}

TEST(Keys, AgreeAsRfc7748Says) {
  const KeyPair alice(
      Key(digest_from_hex("77076d0a7318a57d3c16c17251b26645"
                          "6c4f1d8d6d4b2f8e2c2a1b6b3d5c4e2a")));
  const KeyPair bob = KeyPair::make();
  const auto one = alice.agree_with(bob.public_key());
  const auto other = bob.agree_with(alice.public_key());
  ASSERT_TRUE(one && other);
  EXPECT_TRUE(is_same(one->bytes(), other->bytes()));
  // The first vector of section 5.2.
  const KeyPair given(
      Key(digest_from_hex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")));
  const auto made = given.agree_with(
      digest_from_hex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"));
  ASSERT_TRUE(made);
  EXPECT_EQ(copy(made->bytes()),
            from_hex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"));
  EXPECT_FALSE(alice.agree_with(Digest{}));  // of it anybody would know the result
}

TEST(FrameMac, CountsForOneFrameOfOneNumberAlone) {
  const Key key(digest_of(bytes_of("key")));
  FrameMac one(key), other(key);
  const Bytes frame(100, std::byte{7});
  const auto tag_of = [](FrameMac& mac, std::span<const std::byte> bytes) {
    mac.add(bytes);
    return mac.finish();
  };
  const FrameTag first = tag_of(one, frame);
  EXPECT_EQ(first, tag_of(other, frame));
  EXPECT_NE(first, tag_of(one, frame));  // the second
  other.add(std::span(frame).first(33));
  other.add(std::span(frame).subspan(33));
  EXPECT_NE(first, other.finish());
  other.take_back();
  one.take_back();
  EXPECT_EQ(tag_of(one, frame), tag_of(other, frame));
  for (std::size_t i = 0; i < frame.size(); ++i) {
    FrameMac anew(key);
    Bytes changed = frame;
    changed[i] ^= std::byte{1};
    EXPECT_NE(first, tag_of(anew, changed));
  }
}

TEST(ProtectedFrames, AreReadInOrderAndNoChangedByteIs) {
  const Key key(digest_of(bytes_of("key")));
  std::string stream;
  FrameMac mac(key);
  for (const char* body : {"", "one", "and another"})
    append_frame(&stream, {.type = 3, .id = 9, .body = body}, &mac);
  const auto frames_of = [&](const std::string& bytes) {
    FrameDecoder decoder(1000);
    decoder.protect(key);
    int count = 0;
    Frame frame;
    for (const char each : bytes) {  // in the smallest parts
      decoder.feed(std::as_bytes(std::span(&each, 1)));
      auto next = decoder.next(&frame);
      for (; next == FrameDecoder::Next::frame; next = decoder.next(&frame)) ++count;
      if (next == FrameDecoder::Next::malformed) return -1 - count;
    }
    return count;
  };
  EXPECT_EQ(frames_of(stream), 3);
  for (std::size_t i = 0; i < stream.size(); ++i) {
    std::string changed = stream;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    EXPECT_LT(frames_of(changed), 0) << i << ": nothing more is waited for";
  }
  const std::size_t second = kFrameHeaderBytes + 2 * kFrameTagBytes;
  const std::size_t third = second + kFrameHeaderBytes + 3 + 2 * kFrameTagBytes;
  EXPECT_EQ(frames_of(stream.substr(second)), -1) << "the first was dropped";
  EXPECT_EQ(frames_of(stream.substr(0, second) + stream.substr(third)), -2) << "the second was";
  EXPECT_EQ(frames_of(stream.substr(0, second) + stream), -2) << "the first came twice";
}

// ---- handshakes --------------------------------------------------------------------------------

const Key kKey(digest_of(bytes_of("the key")));
const Claim kClaim{.purpose = Purpose::data, .from = 3, .to = 5, .group = 77, .lane = 1};

Handshake caller(Level level = Level::auth, const Key& key = kKey) {
  return Handshake::calling(kClaim, level, key);
}
Handshake called(Level level = Level::auth, const Key& key = kKey) {
  return Handshake::called(level, [key](const Claim& claim) {
    return claim == kClaim ? std::optional(key) : std::nullopt;
  });
}

/// Takes what an end has to say.
Bytes said_by(Handshake& end) {
  Bytes said = copy(end.unsent());
  end.has_sent(said.size());
  return said;
}

void hear(Handshake& end, std::span<const std::byte> bytes) {
  while (!bytes.empty() && end.wants() > 0) {
    const std::size_t piece = std::min(bytes.size(), end.wants());
    end.receive(bytes.first(piece));
    bytes = bytes.subspan(piece);
  }
}

/// What three messages came to at both ends.
struct Both {
  Outcome caller, called;
  bool operator==(const Both&) const = default;
};

Both shake(Handshake& one, Handshake& other) {
  hear(other, said_by(one));
  hear(one, said_by(other));
  hear(other, said_by(one));
  return {one.outcome(), other.outcome()};
}

TEST(Handshake, ProvesBothEndsAndGivesThemTheSameKeys) {
  Handshake one = caller(), other = called();
  EXPECT_EQ(shake(one, other), (Both{Outcome::proved, Outcome::proved}));
  EXPECT_EQ(other.claim(), kClaim);
  const FrameKeys near = one.frame_keys(), far = other.frame_keys();
  EXPECT_TRUE(is_same(near.send.bytes(), far.receive.bytes()));
  EXPECT_TRUE(is_same(near.receive.bytes(), far.send.bytes()));
  EXPECT_FALSE(is_same(near.send.bytes(), near.receive.bytes()));
  EXPECT_EQ(one.wants() + other.wants(), 0u);
  Handshake again = caller(), another = called();
  shake(again, another);
  EXPECT_FALSE(is_same(near.send.bytes(), again.frame_keys().send.bytes())) << "of another one";
}

TEST(Handshake, NothingIsProvedBeforeTheLastByte) {
  Handshake one = caller(), other = called();
  const auto byte_by_byte = [](Handshake& end, const Bytes& bytes) {
    for (const std::byte& each : bytes) {
      EXPECT_EQ(end.outcome(), Outcome::going_on);
      EXPECT_GT(end.wants(), 0u);
      end.receive(std::span(&each, 1));
    }
  };
  byte_by_byte(other, said_by(one));
  byte_by_byte(one, said_by(other));
  EXPECT_EQ(one.outcome(), Outcome::proved);
  byte_by_byte(other, said_by(one));
  EXPECT_EQ(other.outcome(), Outcome::proved);
}

TEST(Handshake, NoChangedByteIsBelieved) {
  for (std::size_t at = 0; at < kHelloBytes + kReplyBytes + kProofBytes; ++at) {
    Handshake one = caller(), other = called();
    const auto changed = [&](Bytes bytes, std::size_t begin) {
      if (at >= begin && at < begin + bytes.size()) bytes[at - begin] ^= std::byte{0x04};
      return bytes;
    };
    hear(other, changed(said_by(one), 0));
    hear(one, changed(said_by(other), kHelloBytes));
    hear(other, changed(said_by(one), kHelloBytes + kReplyBytes));
    EXPECT_NE(other.outcome(), Outcome::proved) << at;
    const bool has_heard_it = at < kHelloBytes + kReplyBytes;
    EXPECT_EQ(one.outcome() == Outcome::proved, !has_heard_it) << at;
  }
}

TEST(Handshake, WhoHasAnotherSecretIsUnprovedAtBothEnds) {
  Handshake one = caller(Level::auth, Key(digest_of(bytes_of("another")))), other = called();
  EXPECT_EQ(shake(one, other), (Both{Outcome::unproved, Outcome::unproved}));
  EXPECT_EQ(other.claim(), kClaim) << "as it said";
}

TEST(Handshake, LevelsThatDifferAreToldToBothEnds) {
  for (const Level near : {Level::none, Level::opportunistic, Level::auth, Level::integrity}) {
    for (const Level far : {Level::none, Level::opportunistic, Level::auth, Level::integrity}) {
      Handshake one = caller(near), other = called(far);
      const Outcome expected = near == far ? Outcome::proved : Outcome::other_level;
      EXPECT_EQ(shake(one, other), (Both{expected, expected}));
      EXPECT_EQ(one.other_level(), far);
      EXPECT_EQ(other.other_level(), near);
    }
  }
}

TEST(Handshake, AnotherVersionIsToldToBothEnds) {
  Handshake one = caller(), other = called();
  Bytes hello = said_by(one);
  hello[8] = std::byte{kHandshakeVersion + 1};
  hear(other, hello);
  EXPECT_EQ(other.outcome(), Outcome::other_version);
  EXPECT_EQ(other.other_version(), kHandshakeVersion + 1);
  Bytes reply = said_by(other);
  ASSERT_EQ(reply.size(), kReplyBytes);
  reply[8] = std::byte{kHandshakeVersion + 1};
  hear(one, reply);
  EXPECT_EQ(one.outcome(), Outcome::other_version);
}

TEST(Handshake, AClaimForSomebodyElseIsRefused) {
  Handshake one = Handshake::calling({.purpose = Purpose::line, .from = 3, .to = 4}, Level::auth,
                                     kKey),
            other = called();
  EXPECT_EQ(shake(one, other), (Both{Outcome::refused, Outcome::refused}));
}

TEST(Handshake, AReplayIsUnproved) {
  Handshake one = caller(), other = called();
  const Bytes hello = said_by(one);
  hear(other, hello);
  const Bytes reply = said_by(other);
  hear(one, reply);
  const Bytes confirm = said_by(one);
  hear(other, confirm);
  ASSERT_EQ(other.outcome(), Outcome::proved);
  Handshake again = called();  // all that the caller had said
  hear(again, hello);
  hear(again, confirm);
  EXPECT_EQ(again.outcome(), Outcome::unproved);
  Handshake anew = caller();  // all that the called had said
  hear(anew, reply);
  EXPECT_EQ(anew.outcome(), Outcome::unproved);
}

TEST(Handshake, AReflectionIsUnproved) {
  Handshake one = caller();
  Bytes hello = said_by(one);
  hello.resize(kReplyBytes);  // its own hello as the reply
  hear(one, hello);
  EXPECT_EQ(one.outcome(), Outcome::unproved);
  Handshake another = caller(), other = called();
  hear(other, said_by(another));
  const Bytes reply = said_by(other);
  hear(other, std::span(reply).last(kProofBytes));  // its own proof as the caller's
  EXPECT_EQ(other.outcome(), Outcome::unproved);
  // Two callers whose hellos are swapped: each is asked to be the called one.
  Handshake left = caller(), right = caller();
  Bytes of_left = said_by(left), of_right = said_by(right);
  of_left.resize(kReplyBytes);
  of_right.resize(kReplyBytes);
  hear(left, of_right);
  hear(right, of_left);
  EXPECT_EQ(left.outcome(), Outcome::unproved);
  EXPECT_EQ(right.outcome(), Outcome::unproved);
}

// ---- notes -------------------------------------------------------------------------------------

Handshake writer(int from, int to, const Key& key = kKey) {
  return Handshake::calling({.purpose = Purpose::note, .from = from, .to = to}, Level::auth, key);
}
/// Rank 5, which knows rank 3.
Handshake reader() {
  return Handshake::called(Level::auth, [](const Claim& claim) {
    return claim.from == 3 && claim.to == 5 ? std::optional(kKey) : std::nullopt;
  });
}
Outcome heard(const Bytes& note) {
  Handshake end = reader();
  hear(end, note);
  EXPECT_TRUE(end.unsent().empty());  // nobody would hear it
  return end.outcome();
}

TEST(Handshake, ANoteIsProvedWithoutAnAnswer) {
  Handshake one = writer(3, 5), other = reader();
  EXPECT_EQ(one.outcome(), Outcome::proved);
  EXPECT_EQ(one.wants(), 0u);
  hear(other, said_by(one));
  EXPECT_EQ(other.outcome(), Outcome::proved);
  EXPECT_EQ(copy(one.frame_keys().send.bytes()), copy(other.frame_keys().receive.bytes()));
  EXPECT_EQ(one.nonce(), other.nonce());
  Handshake again = writer(3, 5);  // each has keys of its own
  EXPECT_NE(one.nonce(), again.nonce());
  EXPECT_NE(copy(one.frame_keys().send.bytes()), copy(again.frame_keys().send.bytes()));
}

TEST(Handshake, NoChangedByteOfANoteIsBelieved) {
  Handshake one = writer(3, 5);
  const Bytes note = said_by(one);
  ASSERT_EQ(heard(note), Outcome::proved);
  for (std::size_t i = 0; i < note.size(); ++i) {
    Bytes changed = note;
    changed[i] ^= std::byte{1};
    Handshake end = reader();
    hear(end, changed);
    EXPECT_NE(end.outcome(), Outcome::proved) << i;
    EXPECT_NE(heard({note.begin(), note.begin() + static_cast<std::ptrdiff_t>(i)}), Outcome::proved)
        << i;
  }
}

TEST(Handshake, ANoteOfSomebodyElseIsNotBelieved) {
  Handshake stranger = writer(3, 5, Key(digest_of(bytes_of("another")))), back = writer(5, 3);
  EXPECT_EQ(heard(said_by(stranger)), Outcome::unproved);
  EXPECT_EQ(heard(said_by(back)), Outcome::refused);
}

TEST(Handshake, WhoSpeaksSomethingElseIsToldByItsFirstBytes) {
  for (const std::string banner : {"SSH-2.0-OpenSSH_9.2p1", "GET / HTTP/1.1\r\n\r\n"}) {
    for (Handshake end : {caller(), called()}) {
      hear(end, bytes_of(banner));
      EXPECT_EQ(end.outcome(), Outcome::strange);
      EXPECT_EQ(end.wants(), 0u);
    }
  }
  std::mt19937_64 random(7);
  for (int round = 0; round < 1000; ++round) {
    Bytes noise(kReplyBytes);
    for (std::byte& each : noise) each = static_cast<std::byte>(random());
    Handshake one = caller(), other = called();
    hear(one, noise);
    hear(other, noise);
    EXPECT_EQ(one.outcome(), Outcome::strange);
    EXPECT_EQ(other.outcome(), Outcome::strange);
    EXPECT_TRUE(other.unsent().empty()) << "nothing is said to strangers";
  }
}

}  // namespace
}  // namespace tutti::net
