// What a rank says of its process when it claims its number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tutti::rendezvous {

struct Claim {
  int world_size = 0;
  int pid = 0;
  int parent = 0;
  int group = 0;
  std::uint64_t start_time = 0;  ///< 0: not known
  std::string where;  ///< boot id, pid and time name space: where pid and start time mean
                      ///< something; empty: not known
  std::string host;   ///< its name, for people
  std::string nonce;  ///< tells the claims of one process apart
  std::string program;
};
std::string encode(const Claim& claim);
std::optional<Claim> decode_claim(const std::string& text);
Claim claim_of_this_process(int world_size);
/// "pid 4711 (train)".
std::string describe(const Claim& claim);
/// "pid 4711 (train) on node-3": for readers on any host.
std::string describe_with_host(const Claim& claim);
/// For a reader in the process of `own`: with the host if that is another.
std::string describe_for(const Claim& own, const Claim& claim);

/// Whether the process that made `claim` has ended, as seen from that of `own`. No: it lives, or
/// cannot be seen from here.
bool is_dead(const Claim& claim, const Claim& own);
/// Started together: by the same parent, or as one job of a shell. The pids of two hosts say
/// nothing of that.
bool is_kin(const Claim& a, const Claim& b);

}  // namespace tutti::rendezvous
