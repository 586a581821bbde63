// Facts about processes and their host, for messages and for checks of descent.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tutti::net {

/// Name of the program a process runs, without its folder: from cmdline, else comm. "?" if unknown.
std::string program_of(pid_t pid);
/// "pid 4711 (train)".
std::string describe_process(pid_t pid);

/// What /proc/<pid>/stat says. A pid together with its start time names one process for ever.
struct ProcessStat {
  char state = '?';
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  std::uint64_t start_time = 0;  ///< clock ticks since boot
};
/// Empty when there is no such process, or it may not be seen.
std::optional<ProcessStat> stat_of(pid_t pid);

/// Whether the process `pid` that began at `start_time` (0: not known) has ended: a zombie has, a
/// process that /proc does not show has not.
bool has_ended(pid_t pid, std::uint64_t start_time);

/// Whether a signal or a debugger has stopped it.
bool is_stopped(pid_t pid);

/// As gethostname says, with ? for what is in no word; "localhost" where it does not.
std::string own_host_name();

/// Where a pid and a start time mean what they mean here: boot id, pid name space and, where the
/// kernel has them, time name space, by which it shifts the start times that it shows. Empty if
/// /proc does not say: then nobody knows where the pids of this process mean something.
std::string pid_space();

/// Whether /proc is there and shows the processes by the numbers that they have for us.
bool has_own_proc();

/// Whether `pid` is `ancestor` or a child, grandchild, ... of it. Where /proc is not our own nobody
/// is known to be more than itself.
bool descends_from(pid_t pid, pid_t ancestor);

}  // namespace tutti::net
