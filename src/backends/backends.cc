#include "backends/backends.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "group/plugin.h"
#include "native/native.h"
#include "rendezvous/mpi_choice.h"

namespace tutti {

namespace {

using rendezvous::Identity;

/// The names in the setting `backend`: "gloo", or by the kind of memory "cpu:gloo,cuda:nccl".
struct BackendNames {
  std::string cpu, cuda;  ///< `cuda` is `cpu`, too, where device memory is staged
};

[[noreturn]] void throw_invalid(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "init_process_group: " + text);
}

/// A name that means several plugins.
std::string plugin_of(const std::string& backend, const Config& config, const Identity& identity,
                      std::span<const std::string> plugins) {
  static constexpr std::string_view kMpi = "mpi_";
  const auto is_mpi = [](std::string_view name) { return name.starts_with(kMpi); };
  const bool is_named = backend == "mpi_openmpi" || backend == "mpi_mpich";  // the plugin itself
  if (!(is_named || backend == "mpi") || std::none_of(plugins.begin(), plugins.end(), is_mpi)) {
    return backend;
  }
  const std::string mpi = is_named ? backend.substr(kMpi.size()) : config.text(Setting::mpi);
  return rendezvous::choose_mpi(rendezvous::find_mpi(), mpi, identity, plugins);
}

[[noreturn]] void throw_no_backend(const std::string& name, std::vector<std::string> plugins,
                                   const std::vector<std::string>& folders) {
  std::vector<std::string> known = {"native", "gloo", "mpi", "nccl"};
  const auto is_mpi = [](const std::string& plugin) { return plugin.starts_with("mpi_"); };
  if (std::any_of(plugins.begin(), plugins.end(), is_mpi)) plugins.insert(plugins.begin(), "mpi");
  plugins.insert(plugins.begin(), "native");
  if (std::find(known.begin(), known.end(), name) != known.end()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("init_process_group: the backend \"{}\" is not built in; this build "
                            "has: {} (plugins are searched in {} and in TUTTI_BACKEND_PATH)",
                            name, fmt::join(plugins, ", "), fmt::join(folders, ", ")));
  }
  const std::string here = nearest(name, plugins);
  const std::string elsewhere = nearest(name, known);
  throw_invalid(fmt::format("there is no backend \"{}\"{} this build has: {}", name,
                            !here.empty() ? fmt::format(", did you mean \"{}\"? If not,", here)
                            : !elsewhere.empty()
                                ? fmt::format(" (\"{}\" is one, which is not built in);", elsewhere)
                                : ";",
                            fmt::join(plugins, ", ")));
}

void refuse_insecure(const BackendInfo& backend, const std::string& security) {
  if (backend.secure || security == "none" || security == "opportunistic") return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("backend \"{}\": what it sends is neither authenticated nor encrypted, "
                          "and TUTTI_SECURITY={} asks for that: use the backend native, or give up "
                          "the protection with TUTTI_SECURITY=opportunistic",
                          backend.name, security));
}

/// The backends whose buffers are in device memory; barriers and objects need another one beside.
bool is_for_devices(std::string_view name) { return name == "nccl"; }

BackendNames names_of(const std::string& text) {
  if (is_for_devices(text)) return {"native", text};
  if (text.find_first_of(":,") == std::string::npos) return {text, text};
  BackendNames names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t colon = part.find(':');
    const std::string kind = part.substr(0, colon);
    const std::string name = colon == std::string::npos ? "" : part.substr(colon + 1);
    std::string* const place = kind == "cpu" ? &names.cpu : kind == "cuda" ? &names.cuda : nullptr;
    if (place == nullptr || name.empty() || !place->empty()) {
      throw_invalid(
          fmt::format("backend \"{}\": \"{}\" is not understood; name one backend for all "
                      "memory, like gloo, or one for each kind, like cpu:gloo,cuda:nccl",
                      text, part));
    }
    *place = name;
    begin = end + 1;
  }
  if (names.cpu.empty()) names.cpu = is_for_devices(names.cuda) ? "native" : names.cuda;
  if (names.cuda.empty()) names.cuda = names.cpu;
  if (is_for_devices(names.cpu)) {
    throw_invalid(
        fmt::format("backend \"{}\": {} takes device memory only, so that it cannot be "
                    "the one for cpu",
                    text, names.cpu));
  }
  if (names.cuda != names.cpu && !is_for_devices(names.cuda)) {
    throw_invalid(
        fmt::format("backend \"{}\": {} takes the memory of the host only. Device memory "
                    "goes through the backend for cpu, which is {}: leave cuda:{} out",
                    text, names.cuda, names.cpu, names.cuda));
  }
  return names;
}

MakeBackend maker_of(const group::Plugin& plugin) {
  return
      [make = plugin.make](const GroupSpec& spec) { return std::unique_ptr<Backend>(make(spec)); };
}

MakeBackend find_backend(const std::string& name, const Config& config, const Identity& identity) {
  if (name == "native") return native::make_native;
  const std::vector<std::string> folders =
      group::plugin_folders(config.text(Setting::backend_path));
  std::vector<std::string> plugins = group::list_plugins(folders);
  const std::string wanted = plugin_of(name, config, identity, plugins);
  if (std::find(plugins.begin(), plugins.end(), wanted) == plugins.end()) {
    throw_no_backend(name, std::move(plugins), folders);
  }
  const group::Plugin plugin = group::load_plugin(wanted, folders);
  refuse_insecure(plugin.about, config.text(Setting::security));
  return maker_of(plugin);
}

/// Empty: it is not there, or not what it needs, or the settings forbid it.
MakeBackend find_if_usable(const std::string& name, const Config& config) {
  try {
    const group::Plugin plugin =
        group::load_plugin(name, group::plugin_folders(config.text(Setting::backend_path)));
    refuse_insecure(plugin.about, config.text(Setting::security));
    if (plugin.about.missing.empty()) return maker_of(plugin);
  } catch (const Error& failure) {
    log(LogLevel::debug, fmt::format("not used for device memory: {}", failure.what()));
  }
  return {};
}

}  // namespace

Backends find_backends(const Config& config, const Identity& identity, bool sees_devices) {
  const std::string& text = config.text(Setting::backend);
  Backends backends;
  if (text == kAutomatic) {
    backends.for_host = native::make_native;
    if (sees_devices) backends.automatic = find_if_usable("nccl", config);
    return backends;
  }
  const BackendNames names = names_of(text);
  backends.for_host = find_backend(names.cpu, config, identity);
  if (names.cuda != names.cpu) backends.for_device = find_backend(names.cuda, config, identity);
  return backends;
}

}  // namespace tutti
