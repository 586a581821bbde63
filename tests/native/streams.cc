// Linked into tests, this puts their ranks on several hosts: TUTTI_TEST_LAYOUT says on which, and
// TUTTI_TEST_TAGS that every frame between them has a tag.
#include "native_ranks.h"

namespace tutti::native {
namespace {

enum Layout : std::uint8_t { apart, halves, first_alone, interleaved };

std::vector<int> hosts_by_layout(int n) {
  std::vector<int> hosts;
  for (int rank = 0; rank < n; ++rank) {
    switch (TUTTI_TEST_LAYOUT) {
      case apart:
        hosts.push_back(rank);
        break;
      case halves:
        hosts.push_back(rank < (n + 1) / 2 ? 0 : 1);
        break;
      case first_alone:
        hosts.push_back(rank == 0 ? 0 : 1);
        break;
      case interleaved:
        hosts.push_back(rank % 2);
        break;
    }
  }
  return hosts;
}

[[maybe_unused]] const bool kIsSet = (hosts_of = hosts_by_layout, true);
#ifdef TUTTI_TEST_TAGS
[[maybe_unused]] const bool kHaveTags = (frames_have_tags = true);
#endif

}  // namespace
}  // namespace tutti::native
