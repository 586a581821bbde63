#include "native/neighbours.h"

#include <algorithm>
#include <map>
#include <utility>

#include "control/membership.h"

namespace tutti::native {
namespace {

/// All members cut alike: as the smallest channel between any two of them wants it.
std::size_t common_payload(const std::vector<int>& hosts) {
  std::map<int, int> members;
  for (const int host : hosts) ++members[host];
  std::size_t payload = kMaxTcpPayload;
  for (const auto& [host, count] : members)
    if (count > 1) payload = std::min(payload, shm_max_payload(count));
  return payload;
}

}  // namespace

Neighbours::Neighbours(const group::NativeSpec& spec)
    : group_size_(static_cast<int>(spec.world_ranks.size())), rank_(spec.rank) {
  const std::vector<int>& hosts = spec.hosts;
  for (int member = 0; member < group_size_; ++member)
    if (of_rank(hosts, member) == of_rank(hosts, rank_)) here_.push_back(member);
  if (here_.size() > 1) arena_ = Arena::make(spec, here_);
  if (here_.size() == hosts.size()) return;
  max_payload_ = common_payload(hosts);
  hosts_ = hosts;
  links_ = std::make_unique<TcpLinks>(*spec.sockets, group::membership_of(spec), spec.world_ranks);
}

/// Among those of this host; -1: it is elsewhere.
int Neighbours::number_here(int member) const noexcept {
  const auto found = std::lower_bound(here_.begin(), here_.end(), member);
  const bool is_here = found != here_.end() && *found == member;
  return is_here ? static_cast<int>(found - here_.begin()) : -1;
}

Channels Neighbours::channels(Lane lane) {
  if (links_ == nullptr) return shm_channels(arena_.get(), lane);
  const auto link = [this, lane](int peer) {
    const int number = number_here(peer);
    return number >= 0 ? shm_link(*arena_, number, lane) : links_->link(peer, lane);
  };
  return Channels(group_size_, rank_, max_payload_, link, &links_->alarm(lane));
}

}  // namespace tutti::native
