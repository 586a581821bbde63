// The channels between one rank and its peers, of one lane.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/of_rank.h"
#include "base/wait.h"
#include "native/channel/channel.h"

namespace tutti::native {

class TcpConnection;

/// What one end of a link tells the other beside the frames, and may tell where these have no room:
/// where they share memory. Else frames tell what `taken` and `held` do, and one end asks the other
/// for what `withdrawn` and `matching` keep apart; see withdrawal.cc.
template <class Word>
struct LinkWords {
  Word* withdrawn = nullptr;  ///< announcements that the owner has taken back
  Word* matching = nullptr;   ///< 1 while the owner matches one of the peer's
  Word* taken = nullptr;      ///< bytes of the peer's buffered messages that the owner has matched
  Word* held = nullptr;       ///< buffered messages of the owner that have yet to be announced
};

/// The way between this rank and one peer.
struct PeerLink {
  std::unique_ptr<Receiver> receiver;
  /// Called once, at the first send: it may reserve memory. Throws kSystem if there is none.
  std::function<std::unique_ptr<Sender>()> open_sender;
  LinkWords<std::atomic<std::uint64_t>> own_words = {};
  LinkWords<const std::atomic<std::uint64_t>> words_of_peer = {};
  /// Where they share no memory, and have no words.
  std::shared_ptr<TcpConnection> connection = nullptr;
};

/// Each ordered pair has one channel per lane, so that neither kind of operation waits for the
/// other.
enum class Lane : std::uint8_t { collective, message };
inline constexpr std::size_t kLaneCount = 2;

class Channels {
 public:
  /// `link` is asked once for every peer. `max_payload`: the largest that every channel takes.
  /// `alarm`: of the connections among them, or null.
  Channels(int group_size, int rank, std::size_t max_payload,
           const std::function<PeerLink(int peer)>& link, Alarm* alarm = nullptr);

  std::size_t max_payload() const noexcept { return max_payload_; }
  Alarm* alarm() const noexcept { return alarm_; }
  /// The channel to `peer`, opened at the first call.
  Sender& sender(int peer) {
    Sender* sender = of_rank(senders_, peer).get();
    return sender != nullptr ? *sender : open(peer);
  }
  Receiver& receiver(int peer) { return *link(peer).receiver; }
  /// What this rank tells `peer` beside the frames, and what `peer` tells it.
  const auto& own_words(int peer) noexcept { return link(peer).own_words; }
  const auto& words_of(int peer) noexcept { return link(peer).words_of_peer; }
  /// Null where they share memory.
  TcpConnection* connection(int peer) noexcept { return link(peer).connection.get(); }

 private:
  PeerLink& link(int peer) noexcept { return of_rank(links_, peer); }
  Sender& open(int peer);

  const std::size_t max_payload_;
  Alarm* const alarm_;
  std::vector<PeerLink> links_;                   // by peer; none for the own rank
  std::vector<std::unique_ptr<Sender>> senders_;  // by peer; null until first used
};

}  // namespace tutti::native
