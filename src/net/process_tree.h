// Everything below one process, found through /proc, and nothing else.
//
// A *descendant* is a process whose chain of parents leads to the root asked about. With the root a
// subreaper no descendant can leave, whatever it does with sessions and process groups. A signal
// goes through a pidfd whose descent was checked after it was opened, so that a number that is
// used again can never hit a stranger. Where /proc is missing, or shows another pid namespace,
// nobody is known to descend from another, and nobody is signalled for it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tutti::net {

/// All descendants of `root`, without it. One look: processes may come and go meanwhile.
std::vector<pid_t> descendants_of(pid_t root);

/// Names in a folder of /proc that are numbers: processes, threads, descriptors.
std::vector<int> numbers_in(const std::string& folder);

/// Signals `pid` if it still descends from `ancestor` when the signal is sent.
bool signal_descendant(pid_t pid, pid_t ancestor, int signal_number);

/// SIGKILLs every descendant of the calling process that lives now, and reaps its children that
/// have ended. One pass: repeat it until it says that no child is left.
///
/// Of `known` it kills those that are its children, and their process groups as long as one of its
/// children is in them. Where /proc shows nobody, or no descriptor is left to look with, these are
/// all, and the groups of children that have ended.
bool kill_and_reap_below(const std::vector<pid_t>& known = {});

/// Kills all descendants of this process and reaps them until none is left; where /proc shows
/// nobody, none that it knows of.
void kill_everything_below(const std::vector<pid_t>& known = {});

}  // namespace tutti::net
