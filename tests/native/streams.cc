// Linked into tests, this puts their ranks on the hosts that TUTTI_TEST_LAYOUT says; "tags" are
// ranks apart of whom every frame has a tag.
#include <cstdlib>
#include <map>

#include "native_ranks.h"

namespace tutti::native {
namespace {

const std::map<std::string_view, HostOf> kLayouts = {
    {"", nullptr},
    {"apart", [](int rank, int) { return rank; }},
    {"tags", [](int rank, int) { return rank; }},
    {"halves", [](int rank, int n) { return rank < (n + 1) / 2 ? 0 : 1; }},
    {"first_alone", [](int rank, int) { return rank == 0 ? 0 : 1; }},
    {"interleaved", [](int rank, int) { return rank % 2; }},
};

[[maybe_unused]] const bool kIsSet = [] {
  const char* const given = std::getenv("TUTTI_TEST_LAYOUT");
  const std::string_view layout = given != nullptr ? given : "";
  host_of = kLayouts.at(layout);
  frames_have_tags = layout == "tags";
  return true;
}();

}  // namespace
}  // namespace tutti::native
