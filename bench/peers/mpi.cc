// Open MPI and MPICH as peers: MPI_Allreduce.
#include <mpi.h>

#include "worker.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Peer peer;
  MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &peer.ranks);
  peer.all_reduce = [](float* data, std::size_t count, int) {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  peer.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  peer.send = [](const float* data, std::size_t count, int to) {
    MPI_Send(data, static_cast<int>(count), MPI_FLOAT, to, 0, MPI_COMM_WORLD);
  };
  peer.recv = [](float* data, std::size_t count, int from) {
    MPI_Recv(data, static_cast<int>(count), MPI_FLOAT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  };
  const int status = argc == 3 ? serve(peer, argv[1], std::strtoull(argv[2], nullptr, 10)) : 2;
  MPI_Finalize();
  return status;
}
