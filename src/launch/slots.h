// The hosts that a person names, and how many ranks each takes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::launch {

struct HostSlots {
  std::string name;  ///< as it was written, without a user
  int slots = 1;
};

/// "a:2,b:2" or "a,a,b": mpirun's -H. `word`: for messages.
///
/// Errors  kInvalidArgument: what is wrong, and in which entry.
std::vector<HostSlots> parse_host_list(std::string_view word, std::string_view text);

/// What stands in a file of hosts, which may be a pipe. `word`: for messages.
///
/// Errors  kInvalidArgument: it cannot be read; it is longer than a list of hosts may be.
std::string read_hostfile(std::string_view word, const std::string& path);

/// mpirun's file of hosts, a line each: "name slots=8", MPICH's "name:8", "user@name", "# ...". A
/// line without slots has max_slots of them, else 1. A name that stands in several lines has the
/// sum of theirs. `file`: its name, for messages.
///
/// Errors  kInvalidArgument: what is wrong, and in which line.
std::vector<HostSlots> parse_hostfile(std::string_view file, std::string_view text);

/// Whether `name` (or an address in numbers, of IPv6 also in brackets) is this host's: how it calls
/// itself, with or without its domain; a loopback; an address of one of its interfaces; or a name
/// that the system says has one of these. May take 2 s to find out.
bool is_this_host(const std::string& name);

/// How many ranks there will be: `asked`, or one for each slot. Where there are no hosts, or more
/// ranks may run than there are slots, as many as asked, at least 1.
///
/// Errors  kInvalidArgument: a host is not this one; more ranks than slots, with the arithmetic.
int ranks_on(const std::vector<HostSlots>& hosts, std::optional<int> asked, bool oversubscribe);

}  // namespace tutti::launch
