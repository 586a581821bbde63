#include "native/channels.h"

#include "base/of_rank.h"

namespace tutti::native {

Channels::Channels(int group_size, int rank, std::size_t max_payload,
                   const std::function<PeerLink(int peer)>& link, Alarm* alarm)
    : max_payload_(max_payload),
      alarm_(alarm),
      links_(static_cast<std::size_t>(group_size)),
      senders_(static_cast<std::size_t>(group_size)) {
  for (int peer = 0; peer < group_size; ++peer) {
    if (peer != rank) of_rank(links_, peer) = link(peer);
  }
}

Sender& Channels::open(int peer) { return *(of_rank(senders_, peer) = link(peer).open_sender()); }

}  // namespace tutti::native
