// How one rank of a group reaches the others: over shared memory those on its host, over
// connections the rest.
#pragma once

#include <memory>
#include <vector>

#include "group/native_spec.h"
#include "native/arena.h"
#include "native/channels.h"
#include "native/tcp_links.h"

namespace tutti::native {

class Neighbours {
 public:
  /// Waits for the members on this host, if there are others.
  /// Errors  As Arena::make.
  explicit Neighbours(const group::NativeSpec& spec);
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  /// For one call per lane; they must not outlive this.
  Channels channels(Lane lane);
  /// Null unless the group has several members, and all are on this host.
  Arena* arena_of_all() noexcept { return links_ == nullptr ? arena_.get() : nullptr; }
  /// By member: the number of its host; empty if all are on this one.
  const std::vector<int>& hosts() const noexcept { return hosts_; }
  /// Null if all are on this host.
  TcpLinks* links() const noexcept { return links_.get(); }

 private:
  int number_here(int member) const noexcept;

  const int group_size_, rank_;
  std::vector<int> hosts_;        // with links
  std::vector<int> here_;         // the members on this host, ascending
  std::size_t max_payload_ = 0;   // with links: the same at all members
  std::unique_ptr<Arena> arena_;  // null if nobody else is here
  std::unique_ptr<TcpLinks> links_;
};

}  // namespace tutti::native
