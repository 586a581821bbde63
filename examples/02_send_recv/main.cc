// Rank 0 adds one and sends; rank 1 receives. Run it with: tutti run -n 2 ./send_recv
// or, by hand, once with RANK=0 and once with RANK=1:
//     MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 RANK=0 ./send_recv
#include <tutti/tutti.h>

#include <cstdio>
#include <exception>

int main() try {
  auto world = tutti::init_process_group();
  if (world.world_size() != 2) {
    std::fprintf(stderr, "send_recv: needs 2 ranks, not %d\n", world.world_size());
    return 2;
  }
  float x = 0;
  if (world.rank() == 0) {
    x += 1;
    world.send(x, 1);  // returns when rank 1 has posted its receive
  } else {
    std::printf("init tensor tensor([%.0f.])\n", x);
    world.recv(x, 0);
  }
  std::printf("Rank: %d, has data tensor([%.0f.])\n", world.rank(), x);
} catch (const std::exception& failure) {
  std::fprintf(stderr, "send_recv: %s\n", failure.what());
  return 1;
}
