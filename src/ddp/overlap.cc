#include "ddp/overlap.h"

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

bool pays_to_overlap(ProcessGroup& group, int threads, Where where) {
  if (group.local_world_size() < group.world_size()) return true;  // meanwhile a link works
  const Computing own{own_cores(), threads};
  std::vector<Computing> all(static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)), {},
                   where);
  return has_spare_core(all);
}

}  // namespace tutti::ddp
