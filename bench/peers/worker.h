// The rank of a peer: obeys the driver's commands, one per line, on the pipe DIR/NAME.RANK.in and
// answers on DIR/NAME.RANK.out. While it waits for a command it sleeps, so that the peer that is
// measured has the machine.
//
//   check BYTES ALGORITHM         all_reduce of known data; answers how many elements are wrong
//   run BYTES TIMES ALGORITHM     answers nanoseconds per operation, back to back, as seen by this
//                                 rank, after as many that are not timed
//   quit
//
// Algorithm -1 is no all_reduce but a message from rank 0 to rank 1 and back.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

inline constexpr int kThereAndBack = -1;

struct Peer {
  int rank = 0;
  int ranks = 1;
  std::function<void(float* data, std::size_t count, int algorithm)> all_reduce;  ///< sum, in place
  std::function<void()> barrier;
  std::function<void(const float* data, std::size_t count, int to)> send;
  std::function<void(float* data, std::size_t count, int from)> recv;
};

inline void operate(const Peer& peer, float* data, std::size_t count, int algorithm) {
  if (algorithm != kThereAndBack) return peer.all_reduce(data, count, algorithm);
  if (peer.rank == 0) peer.send(data, count, 1);
  peer.recv(data, count, 1 - peer.rank);
  if (peer.rank == 1) peer.send(data, count, 0);
}

inline std::size_t wrong_elements(const Peer& peer, float* data, std::size_t count, int algorithm) {
  // Small integers: every order of additions gives the same sum.
  for (std::size_t at = 0; at < count; ++at) {
    data[at] = static_cast<float>((at % 1000 + 1) * static_cast<std::size_t>(peer.rank + 1));
  }
  operate(peer, data, count, algorithm);
  const auto factor =
      algorithm == kThereAndBack ? 1 : static_cast<std::size_t>(peer.ranks * (peer.ranks + 1) / 2);
  std::size_t wrong = 0;
  for (std::size_t at = 0; at < count; ++at) {
    if (data[at] != static_cast<float>((at % 1000 + 1) * factor)) ++wrong;
    data[at] = 0;  // sums of zeros stay zero, however often they are added
  }
  return wrong;
}

inline double nanoseconds_each(const Peer& peer, float* data, std::size_t count, long times,
                               int algorithm) {
  // The ranks were asleep; the kernel may have woken them all on one core and takes some
  // milliseconds to part them, unless their launcher has bound them.
  for (long index = 0; index < times; ++index) operate(peer, data, count, algorithm);
  peer.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (long index = 0; index < times; ++index) operate(peer, data, count, algorithm);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / static_cast<double>(times);
}

/// Serves until "quit" or the end of the pipe. Returns the exit status.
inline int serve(const Peer& peer, const std::string& pipes, std::size_t largest_bytes) {
  const std::string base = pipes + "." + std::to_string(peer.rank);
  std::FILE* commands = std::fopen((base + ".in").c_str(), "r");
  std::FILE* answers = std::fopen((base + ".out").c_str(), "w");
  auto* data = static_cast<float*>(std::aligned_alloc(4096, largest_bytes));
  if (commands == nullptr || answers == nullptr || data == nullptr) {
    std::perror(base.c_str());
    return 1;
  }
  std::memset(data, 0, largest_bytes);
  char line[256];
  while (std::fgets(line, sizeof line, commands) != nullptr) {
    std::size_t byte_count = 0;
    long times = 0;
    int algorithm = 0;
    if (std::sscanf(line, "check %zu %d", &byte_count, &algorithm) == 2) {
      std::fprintf(answers, "%zu\n", wrong_elements(peer, data, byte_count / 4, algorithm));
    } else if (std::sscanf(line, "run %zu %ld %d", &byte_count, &times, &algorithm) == 3) {
      std::fprintf(answers, "%.2f\n",
                   nanoseconds_each(peer, data, byte_count / 4, times, algorithm));
    } else {
      break;
    }
    std::fflush(answers);
  }
  return 0;
}
