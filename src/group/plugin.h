// Backends in shared objects of their own: finding, checking and loading them.
#pragma once

#include <string>
#include <vector>

#include "tutti/backend.h"

namespace tutti::group {

/// A backend that was loaded. It stays loaded until the process ends: its libraries have threads
/// and exit handlers.
struct Plugin {
  std::string path;
  BackendInfo about;
  bool shares_library = false;  ///< uses the copy of Tutti that looked at it
  Backend* (*make)(const GroupSpec& spec) = nullptr;
};

/// "libtutti_backend_gloo.so"
std::string plugin_file(const std::string& name);

/// Where plugins are searched, in order: beside the library (or the program that contains it), then
/// the folders of `search_path`, separated by colons.
std::vector<std::string> plugin_folders(const std::string& search_path);

/// The names of all backends that have a plugin in `folders`, sorted.
std::vector<std::string> list_plugins(const std::vector<std::string>& folders);

/// Loads the backend `name` from the first of `folders` that has it, to look at it: `make` must not
/// be called where Tutti is a static part of this program.
///
/// Threads   Any.
/// Errors    kUnsupported: no such file (says where it was looked for), damaged, made for another
///           Tutti or another C++ library, or a library it needs is missing (names it and, where
///           known, its package).
Plugin probe_plugin(const std::string& name, const std::vector<std::string>& folders);

/// The same, to use it.
///
/// Errors    Also kUnsupported: Tutti is a static part of this program.
Plugin load_plugin(const std::string& name, const std::vector<std::string>& folders);

}  // namespace tutti::group
