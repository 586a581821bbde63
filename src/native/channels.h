// The channels between one rank and its peers, of one lane.
#pragma once

#include <memory>
#include <vector>

#include "native/arena.h"
#include "native/channel/shm.h"

namespace tutti::native {

class Channels {
 public:
  /// `arena` is null in a group of one, which has no peers.
  Channels(Arena* arena, Lane lane);

  /// The largest payload every channel of the group takes; 64 KiB where there is no channel.
  std::size_t max_payload() const noexcept { return max_payload_; }
  /// The channel to `peer`. Its memory is reserved at the first call: throws kSystem if there is
  /// none.
  Sender& sender(int peer) {
    Sender* sender = senders_[static_cast<std::size_t>(peer)].get();
    return sender != nullptr ? *sender : open(peer);
  }
  Receiver& receiver(int peer) { return *receivers_[static_cast<std::size_t>(peer)]; }
  /// What this rank tells `peer` beside the frames, and what `peer` tells it.
  ChannelCounters& own_words(int peer) noexcept { return arena_->counters(peer, lane_); }
  const ChannelCounters& words_of(int peer) const noexcept {
    return arena_->peer(peer).counters(arena_->rank(), lane_);
  }

 private:
  Sender& open(int peer);

  Arena* const arena_;
  const Lane lane_;
  std::size_t max_payload_ = std::size_t{64} << 10;
  std::vector<std::unique_ptr<Sender>> senders_;      // by peer; null until first used
  std::vector<std::unique_ptr<Receiver>> receivers_;  // by peer; null for the own rank
};

}  // namespace tutti::native
