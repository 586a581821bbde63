#include "ddp/arrivals.h"

#include <algorithm>

namespace tutti::ddp {

void Arrivals::note(std::chrono::nanoseconds waited, ProcessGroup& group, Where where) {
  waited_[noted_] = static_cast<std::uint64_t>(std::max<std::int64_t>(waited.count(), 0));
  if (++noted_ < kWindow) return;
  noted_ = 0;
  std::vector<std::uint64_t> all(kWindow * last_.size());
  group.all_gather(ConstBuffer(waited_), Buffer(all), {}, where);
  for (std::size_t step = 0; step < kWindow; ++step) {
    std::size_t latest = 0;
    for (std::size_t rank = 1; rank < last_.size(); ++rank) {
      if (all[rank * kWindow + step] < all[latest * kWindow + step]) latest = rank;
    }
    ++last_[latest];
  }
}

}  // namespace tutti::ddp
