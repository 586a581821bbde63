#include "ddp/arrivals.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tutti/test_kit.h"

namespace tutti::ddp {
namespace {

TEST(Arrivals, WhoWaitsLeastCameLastOnAllRanksAndHosts) {
  const auto body = [](ProcessGroup& world) {
    Arrivals arrivals(world.world_size());
    const std::vector<std::uint64_t> none(3);
    for (std::size_t step = 0; step < 2 * Arrivals::kWindow; ++step) {
      if (step < Arrivals::kWindow && arrivals.last() != none) throw std::runtime_error("too soon");
      const std::size_t last = step % 4 == 0 ? 2 : 1;  // rank 0 never
      const bool is_last = static_cast<std::size_t>(world.rank()) == last;
      arrivals.note(std::chrono::microseconds(is_last ? 3 : 100 + world.rank()), world,
                    Where::current());
    }
    const std::vector<std::uint64_t> expected = {0, 24, 8};
    if (arrivals.last() != expected) throw std::runtime_error("wrong ranks");
  };
  EXPECT_NO_THROW(test_kit::run_ranks(3, body));
  EXPECT_NO_THROW(test_kit::run_ranks(3, body, {.hosts = {0, 1, 0}}));
}

}  // namespace
}  // namespace tutti::ddp
