// The bare engine as a peer: no public call, no board, no failure handling. What the public call
// costs beside it is the price of those.
#include <sys/wait.h>

#include "../bare_engine.h"
#include "worker.h"

int main(int argc, char** argv) {
  if (argc < 4) return 2;  // PIPES LARGEST RANKS [SMALL SEGMENT RING]
  const int ranks = std::atoi(argv[3]);
  tutti::native::EngineTuning tuning = tutti::native::engine_tuning(ranks, tutti::usable_cores());
  if (argc > 4) tuning.small_bytes = std::strtoull(argv[4], nullptr, 10);
  if (argc > 5) tuning.segment_bytes = std::strtoull(argv[5], nullptr, 10);
  if (argc > 6) tuning.ring_bytes = std::strtoull(argv[6], nullptr, 10);
  const bench::BareMemory memory(ranks, tuning);
  int rank = 0;
  while (rank < ranks - 1 && ::fork() != 0) ++rank;
  bench::BareEngine engine(memory, rank, ranks);

  Peer peer;
  peer.rank = rank;
  peer.ranks = ranks;
  peer.all_reduce = [&](float* data, std::size_t count, int) { engine.all_reduce(data, count); };
  peer.barrier = [&] { engine.barrier(); };
  const int status = serve(peer, argv[1], std::strtoull(argv[2], nullptr, 10));
  while (::wait(nullptr) > 0) {
  }
  return status;
}
