// Tutti as a peer: the public call with everything on. The driver sets the usual variables.
#include <tutti/tutti.h>

#include <span>

#include "worker.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;  // PIPES LARGEST
  tutti::ProcessGroup world = tutti::init_process_group();
  Peer peer;
  peer.rank = world.rank();
  peer.ranks = world.world_size();
  peer.all_reduce = [&](float* data, std::size_t count, int) {
    world.all_reduce(std::span(data, count));
  };
  peer.barrier = [&] { world.barrier(); };
  peer.send = [&](const float* data, std::size_t count, int to) {
    world.send(std::span(data, count), to);
  };
  peer.recv = [&](float* data, std::size_t count, int from) {
    world.recv(std::span(data, count), from);
  };
  return serve(peer, argv[1], std::strtoull(argv[2], nullptr, 10));
}
