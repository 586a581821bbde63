// Finding the program before anything is started, so that a wrong name is one clear line.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace tutti::launch {

/// The path execve will get for `name` in `folder` (empty: here): with a slash it is taken as it
/// is, else looked up in `search_path`. Throws Error(kInvalidArgument) that says what is wrong: not
/// found (and that ./name is there), a directory, not executable; no such folder.
std::string find_program(std::string_view name, std::string_view search_path,
                         const std::string& folder = {});

/// Throws Error(kInvalidArgument) where `command` has Python run a NAME.py that is not there.
void check_script(const std::vector<std::string>& command, const std::string& folder = {});

/// Why the kernel did not execute that file, for people: its interpreter may be what is missing.
std::string explain_refusal(const std::string& path, int error_number);

/// Whether a running program has loaded an OpenMP runtime.
bool has_openmp(pid_t pid);

}  // namespace tutti::launch
