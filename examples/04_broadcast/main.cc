// Rank 0's value goes to all; then all ranks are summed. Run it with: tutti run -n 4 ./broadcast
#include <tutti/tutti.h>

#include <cstdio>
#include <exception>

int main() try {
  auto world = tutti::init_process_group();
  const int rank = world.rank();

  float x = 0;
  if (rank == 0) x += 1;
  world.broadcast(x, {.root = 0});
  std::printf("Worker %d received tensor: %.1f\n", rank, x);
  std::printf("Rank %d has tensor: %.1f\n", rank, x);

  x = static_cast<float>(rank);
  world.all_reduce(x);  // `world.reduce(x, {.root = 0})` leaves the sum on rank 0 only
  std::printf("Rank %d has tensor after all_reduce: %.1f\n", rank, x);
} catch (const std::exception& failure) {
  std::fprintf(stderr, "broadcast: %s\n", failure.what());
  return 1;
}
