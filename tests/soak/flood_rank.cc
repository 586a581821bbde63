// A rank of the soak `flood`: PAGE start|work. It tells the neighbours where it will meet the
// others, waits until they are at it, joins, says how long that took, and either leaves or makes
// groups until it is to end.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string>

#include "soak/neighbours.h"
#include "tutti/tutti.h"

namespace {

using Clock = std::chrono::steady_clock;
using tutti::soak::Page;
using tutti::soak::SharedPage;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void put_address(const SharedPage& page) {
  std::string address = variable("TUTTI_AGENT");
  if (address.empty()) {
    address = "@tutti-" + std::to_string(::geteuid()) + "-" + variable("MASTER_PORT");
  }
  address.copy(page->address.data(), page->address.size() - 1);
  page->address[std::min(address.size(), page->address.size() - 1)] = '\0';
  page->attempts.store(0);
  page->target.fetch_add(1, std::memory_order_release);
}

/// The flood has risen, or the neighbours do something else.
void await_flood(const SharedPage& page) {
  const Clock::time_point limit = Clock::now() + std::chrono::milliseconds(300);
  while (page->orders.load() == Page::Orders::flood && page->attempts.load() < 200 &&
         Clock::now() < limit) {
    ::usleep(1000);
  }
}

void make_groups(tutti::ProcessGroup& world, const SharedPage& page) {
  std::vector<int> all(static_cast<std::size_t>(world.world_size()));
  std::iota(all.begin(), all.end(), 0);
  for (;;) {
    int goes_on = page->is_job_to_end.load() ? 0 : 1;
    world.broadcast(goes_on);
    if (goes_on == 0) return;
    world.new_group(all).close();
    if (world.rank() == 0) ++page->groups;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: flood_rank PAGE start|work");
  const SharedPage page(argv[1]);
  if (variable("RANK") == "0") put_address(page);
  await_flood(page);
  const Clock::time_point begin = Clock::now();
  auto world = tutti::init_process_group();
  const std::chrono::duration<double> took = Clock::now() - begin;
  std::printf("started %.4f\n", took.count());
  std::fflush(stdout);
  if (std::string(argv[2]) == "work") make_groups(world, page);
  world.close();
} catch (const std::exception& failed) {
  std::fprintf(stderr, "flood_rank: %s\n", failed.what());
  return 1;
}
