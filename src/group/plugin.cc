#include "group/plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include "tutti/version.h"

namespace tutti::group {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "libtutti_backend_";
constexpr std::string_view kSuffix = ".so";

/// Debian's package for a library that a plugin needs.
struct Package {
  std::string_view library;
  std::string_view name;
};
constexpr Package kPackages[] = {
    {"libgloo.so", "libgloo0"}, {"libmpi.so", "libopenmpi3"}, {"libmpich.so", "libmpich12"}};

[[noreturn]] void throw_unsupported(const std::string& name, const std::string& text) {
  throw Error(ErrorCode::kUnsupported, fmt::format("backend \"{}\": {}", name, text));
}

/// Whether [offset, offset + size) lies within a file of `file_bytes`.
bool lies_within(std::uint64_t offset, std::uint64_t size, std::uint64_t file_bytes) noexcept {
  return offset <= file_bytes && size <= file_bytes - offset;
}

/// What is wrong with the file, or nothing. The loader maps what the headers promise without
/// looking at the file's length: a truncated file would be a SIGBUS inside dlopen, or would load.
std::optional<std::string> damage_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "is not a file";
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const auto file_bytes = static_cast<std::uint64_t>(std::max<std::streamoff>(file.tellg(), 0));
  file.seekg(0);
  ElfW(Ehdr) header = {};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) {
    return fmt::format("has {} bytes, too few for a shared object", file_bytes);
  }
  constexpr int kNativeClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
  if (!std::equal(header.e_ident, header.e_ident + SELFMAG, ELFMAG)) {
    return "is not a shared object (no ELF header)";
  }
  if (header.e_ident[EI_CLASS] != kNativeClass || header.e_type != ET_DYN) {
    return "is no shared object of this kind of machine";
  }
  const std::uint64_t sections = std::uint64_t{header.e_shnum} * header.e_shentsize;
  const std::uint64_t segments = std::uint64_t{header.e_phnum} * header.e_phentsize;
  if (header.e_phentsize != sizeof(ElfW(Phdr)) || header.e_phnum == 0) {
    return "has no program headers";
  }
  const auto truncated = [&] {
    return fmt::format("is truncated: it has {} bytes, its headers speak of more", file_bytes);
  };
  if (!lies_within(header.e_shoff, sections, file_bytes) ||
      !lies_within(header.e_phoff, segments, file_bytes)) {
    return truncated();
  }
  for (int i = 0; i < header.e_phnum; ++i) {
    ElfW(Phdr) segment = {};
    file.seekg(static_cast<std::streamoff>(header.e_phoff +
                                           static_cast<std::uint64_t>(i) * sizeof segment));
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment) ||
        !lies_within(segment.p_offset, segment.p_filesz, file_bytes)) {
      return truncated();
    }
  }
  return std::nullopt;
}

/// What dlopen has said, for people: the package of a missing library.
std::string explain(const std::string& reason) {
  if (reason.find("cannot open shared object file") == std::string::npos) return reason;
  for (const Package& package : kPackages) {
    if (reason.find(package.library) == std::string::npos) continue;
    return fmt::format("{} (on Debian: apt install {})", reason, package.name);
  }
  return reason;
}

/// A program may contain another version of a plugin's library (libtorch contains a Gloo, and
/// exports it): the plugin must find its own first. The sanitizers forbid it. And the handles of
/// Open MPI are objects: a program that uses them has them in itself unless it is built with -fPIC,
/// and those in the library are never initialised then.
int own_symbols_first(const std::string& name) noexcept {
  const auto is_in_program = [](const char* symbol) {
    return dlsym(RTLD_DEFAULT, symbol) != nullptr;
  };
  if (is_in_program("__asan_init") || is_in_program("__tsan_init")) return 0;
  if (name == "mpi_openmpi" && is_in_program("ompi_mpi_comm_world")) return 0;
  return RTLD_DEEPBIND;
}

template <class Function>
Function* find_symbol(void* library, const char* symbol) noexcept {
  return reinterpret_cast<Function*>(dlsym(library, symbol));
}

std::string folder_of_library() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&build_info), &info) == 0) return {};
  std::error_code error;
  // A program that contains the library is named as it was called.
  const fs::path file = fs::canonical(info.dli_fname, error);
  return error ? std::string() : file.parent_path().string();
}

}  // namespace

std::string plugin_file(const std::string& name) {
  return fmt::format("{}{}{}", kPrefix, name, kSuffix);
}

std::vector<std::string> plugin_folders(const std::string& search_path) {
  std::vector<std::string> folders;
  if (std::string own = folder_of_library(); !own.empty()) folders.push_back(std::move(own));
  for (std::size_t begin = 0; begin < search_path.size();) {
    const std::size_t end = std::min(search_path.find(':', begin), search_path.size());
    if (end > begin) folders.push_back(search_path.substr(begin, end - begin));
    begin = end + 1;
  }
  return folders;
}

std::vector<std::string> list_plugins(const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      const std::string file = entry.path().filename().string();
      if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix)) continue;
      names.push_back(file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Plugin probe_plugin(const std::string& name, const std::vector<std::string>& folders) {
  Plugin plugin;
  for (const std::string& folder : folders) {
    std::error_code error;
    const fs::path path = fs::path(folder) / plugin_file(name);
    if (plugin.path.empty() && fs::exists(path, error)) plugin.path = path.string();
  }
  if (plugin.path.empty()) {
    throw_unsupported(name, fmt::format("its plugin {} is in none of these folders: {}; build it "
                                        "(configure says what it needs) or name its folder in "
                                        "TUTTI_BACKEND_PATH",
                                        plugin_file(name), fmt::join(folders, ", ")));
  }
  if (const auto damage = damage_of(plugin.path)) {
    throw_unsupported(name, fmt::format("{} {}; install it again", plugin.path, *damage));
  }
  void* const library =
      dlopen(plugin.path.c_str(), RTLD_NOW | RTLD_LOCAL | own_symbols_first(name));
  if (library == nullptr) {
    const char* const reason = dlerror();
    throw_unsupported(name, fmt::format("cannot load {}: {}", plugin.path,
                                        explain(reason != nullptr ? reason : "unknown reason")));
  }
  const auto abi = find_symbol<const char*()>(library, "tutti_backend_abi");
  const auto own_library = find_symbol<const void*()>(library, "tutti_backend_library");
  const auto about = find_symbol<void(BackendInfo&)>(library, "tutti_backend_about");
  plugin.make = find_symbol<Backend*(const GroupSpec&)>(library, "tutti_backend_make");
  const bool is_complete = own_library != nullptr && about != nullptr && plugin.make != nullptr;
  const bool is_other = abi != nullptr && abi() != backend_abi();
  if (!is_other && (abi == nullptr || !is_complete)) {
    throw_unsupported(name, fmt::format("{} is no backend of Tutti: it does not export what "
                                        "TUTTI_BACKEND_PLUGIN defines",
                                        plugin.path));
  }
  if (is_other) {
    throw_unsupported(name, fmt::format("{} was built for \"{}\", this library is \"{}\"; build it "
                                        "against this version of Tutti",
                                        plugin.path, abi(), backend_abi()));
  }
  plugin.shares_library = own_library() == reinterpret_cast<const void*>(&build_info);
  about(plugin.about);
  return plugin;
}

Plugin load_plugin(const std::string& name, const std::vector<std::string>& folders) {
  Plugin plugin = probe_plugin(name, folders);
  if (!plugin.shares_library) {
    throw_unsupported(name, fmt::format("{} uses another copy of Tutti than this program, which "
                                        "contains it as a static library: link with libtutti.so "
                                        "to use plugins",
                                        plugin.path));
  }
  return plugin;
}

}  // namespace tutti::group
