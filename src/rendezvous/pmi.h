// Which job a process of MPICH's launcher (Hydra) belongs to, without a word to it.
//
// Hydra has one helper per job on a host, and connects each of its processes with it by the socket
// PMI_FD. Who is at the other end tells the job. Asking over the socket (PMI-1: get_my_kvsname)
// would give it a name as well, but whoever has said anything there and ends without `finalize`,
// which is MPI's to say, has died in Hydra's eyes and takes the job along: every program that never
// starts MPI (seen with 4.0.2).
#pragma once

#include <string>

namespace tutti::rendezvous {

/// A text that is the same for all processes of the job on this host and no other's.
///
/// Errors  kSystem: `fd` is closed, no local socket, or not connected to an ancestor of this
///         process.
std::string pmi_job(int fd);

}  // namespace tutti::rendezvous
