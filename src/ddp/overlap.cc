#include "ddp/overlap.h"

#include <algorithm>
#include <vector>

namespace tutti::ddp {

bool has_spare_core(std::span<const Computing> ranks) noexcept {
  Cores all;
  int threads = 0;
  for (const Computing& rank : ranks) {
    all.join(rank.cores);
    threads += rank.threads;
  }
  return all.count() > threads;
}

Overlap overlap_of(std::span<const Computing> ranks, bool is_one_host) noexcept {
  const auto on_device = [](const Computing& rank) { return rank.on_device != 0; };
  if (std::any_of(ranks.begin(), ranks.end(), on_device)) return Overlap::whole;
  return !is_one_host || has_spare_core(ranks) ? Overlap::but_last : Overlap::none;
}

Overlap choose_overlap(ProcessGroup& group, int threads, bool on_device, Where where) {
  const Computing own{own_cores(), threads, on_device ? 1 : 0};
  std::vector<Computing> all(static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)), {},
                   where);
  return overlap_of(all, group.local_world_size() == group.world_size());
}

}  // namespace tutti::ddp
