#include "native/channels.h"

namespace tutti::native {

Channels::Channels(Arena* arena, Lane lane) : arena_(arena), lane_(lane) {
  if (arena == nullptr) return;
  max_payload_ = ShmSender::max_payload_of(arena->layout().channel_bytes);
  const auto n = static_cast<std::size_t>(arena->group_size());
  senders_.resize(n);
  receivers_.resize(n);
  for (int peer = 0; peer < arena->group_size(); ++peer) {
    if (peer == arena->rank()) continue;
    const Arena::View theirs = arena->peer(peer);
    receivers_[static_cast<std::size_t>(peer)] = std::make_unique<ShmReceiver>(
        theirs.channel_ring(arena->rank(), lane), theirs.counters(arena->rank(), lane).produced,
        arena->counters(peer, lane).consumed);
  }
}

Sender& Channels::open(int peer) {
  const ChannelCounters& theirs = arena_->peer(peer).counters(arena_->rank(), lane_);
  auto sender = std::make_unique<ShmSender>(
      arena_->channel_ring(peer, lane_), arena_->counters(peer, lane_).produced, theirs.consumed);
  return *(senders_[static_cast<std::size_t>(peer)] = std::move(sender));
}

}  // namespace tutti::native
