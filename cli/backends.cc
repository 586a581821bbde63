// tutti backends: which backends there are here, and what each has been shown to do.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "command.h"
#include "group/plugin.h"
#include "matrices.h"
#include "tutti/error.h"
#include "tutti/version.h"

namespace tutti::cli {
namespace {

using nlohmann::ordered_json;

/// One backend as it is here.
struct Here {
  std::string name;
  std::string absent;  ///< why; empty: it can be used
  BackendInfo about;
  std::string path;  ///< of a plugin
};

/// The library's folders as seen from the command, which contains Tutti itself.
std::vector<std::string> folders() {
  const Config config({}, read_environment());
  std::vector<std::string> all = group::plugin_folders(config.text(Setting::backend_path));
  std::error_code error;
  const auto own = std::filesystem::canonical("/proc/self/exe", error).parent_path();
  if (error) return all;
  for (const char* beside : {"..", "../" TUTTI_LIBRARY_FOLDER}) {
    const auto folder = std::filesystem::canonical(own / beside, error);
    if (!error) all.push_back(folder.string());
  }
  return all;
}

Here look_at(const std::string& name, const std::vector<std::string>& where) {
  try {
    group::Plugin plugin = group::probe_plugin(name, where);
    if (!plugin.about.missing.empty()) {
      return {name, fmt::format("{} ({})", plugin.about.missing, plugin.path), {}, {}};
    }
    return {name, "", std::move(plugin.about), std::move(plugin.path)};
  } catch (const Error& error) {
    return {name, error.what(), {}, {}};
  }
}

std::vector<Here> find_all() {
  const std::vector<std::string> where = folders();
  std::vector<std::string> names = group::list_plugins(where);
  for (const char* known : {"gloo", "mpi_openmpi", "mpi_mpich", "nccl"}) names.emplace_back(known);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<Here> all = {{"native", "", {.name = "native", .version = build_info().version}, ""}};
  for (const std::string& name : names) all.push_back(look_at(name, where));
  return all;
}

/// What the suite has shown of a backend; null if it has not been run.
ordered_json matrix_of(std::string_view name) {
  for (const Matrix& matrix : matrices()) {
    if (matrix.name == name) return ordered_json::parse(matrix.json);
  }
  return nullptr;
}

std::string joined(const ordered_json& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : " ") + word.get<std::string>();
  return text;
}

/// What backends can do: those that can do the same share a section.
class Sections {
 public:
  void add(std::string_view name, const std::string& body) {
    const auto same = std::find_if(all_.begin(), all_.end(),
                                   [&](const auto& section) { return section.first == body; });
    if (same == all_.end()) {
      all_.emplace_back(body, name);
    } else {
      same->second += fmt::format(", {}", name);
    }
  }
  /// (what they can do, their names)
  const std::vector<std::pair<std::string, std::string>>& all() const noexcept { return all_; }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
};

std::string lines_of(const ordered_json& matrix) {
  if (matrix.is_null()) return "  no conformance run is known\n";
  std::string text;
  for (const auto& group : matrix["supported"]) {
    if (group["rows"].empty()) continue;
    text += fmt::format("  {}\n", joined(group["operations"]));
    for (const auto& row : group["rows"]) {
      if (!row.contains("dtypes")) continue;
      text += fmt::format("    {}{}\n", joined(row["dtypes"]),
                          row.contains("reduce_ops") ? ": " + joined(row["reduce_ops"]) : "");
    }
  }
  return text;
}

/// Whose memory it moves itself; the rest goes through the host's.
const char* device_of(const Here& here) { return here.name == "nccl" ? "cuda" : "cpu"; }

std::string text_of(const std::vector<Here>& all) {
  std::size_t widest = 0;
  for (const Here& here : all) widest = std::max(widest, here.name.size());
  std::string text;
  Sections sections;
  for (const Here& here : all) {
    if (!here.absent.empty()) {
      text += fmt::format("{:<{}}  absent   {}\n", here.name, widest, here.absent);
      continue;
    }
    text += fmt::format("{:<{}}  present  {} on {}{}{}\n", here.name, widest, here.about.version,
                        device_of(here), here.path.empty() ? "" : ", ", here.path);
    sections.add(here.name, lines_of(matrix_of(here.name)));
  }
  for (const auto& [body, names] : sections.all()) text += fmt::format("\n{}:\n{}", names, body);
  return text;
}

ordered_json json_of(const std::vector<Here>& all) {
  auto backends = ordered_json::array();
  for (const Here& here : all) {
    ordered_json one = {{"name", here.name}, {"present", here.absent.empty()}};
    if (here.absent.empty()) {
      one["version"] = here.about.version;
      one["devices"] = {device_of(here)};
      one["threads"] = here.about.threads;
      if (!here.path.empty()) one["path"] = here.path;
    } else {
      one["reason"] = here.absent;
    }
    const ordered_json matrix = matrix_of(here.name);
    one["matrix"] = matrix.is_null() ? ordered_json(nullptr)
                                     : ordered_json{{"supported", matrix["supported"]},
                                                    {"holes", matrix["holes"]}};
    backends.push_back(std::move(one));
  }
  return {{"backends", std::move(backends)}};
}

std::string markdown_of(const ordered_json& matrix) {
  std::string text = "| operations | dtypes | reduce operations |\n|---|---|---|\n";
  for (const auto& group : matrix["supported"]) {
    for (const auto& row : group["rows"]) {
      text += fmt::format("| {} | {} | {} |\n", joined(group["operations"]),
                          row.contains("dtypes") ? joined(row["dtypes"]) : "-",
                          row.contains("reduce_ops") ? joined(row["reduce_ops"]) : "-");
    }
  }
  text += "\nNot supported:\n";
  for (const auto& [reason, what] : matrix["holes"].items()) {
    text += fmt::format("- {} ({} combinations)\n", reason, what.size());
  }
  return text;
}

/// What has been shown on a machine with a GPU.
constexpr std::string_view kDeviceMatrix = "gpu";

std::string cell_of(const ordered_json& backend, const std::string& operation) {
  const auto& operations = backend["operations"];
  if (!operations.contains(operation)) return "not run yet";
  const auto& shown = operations[operation];
  const std::string dtypes = joined(shown["dtypes"]);
  const std::string kinds = joined(shown["staged_kinds"]);
  return fmt::format("{}{}", dtypes.empty() ? "yes" : dtypes,
                     shown["staged"] ? ", staged"
                     : kinds.empty() ? ""
                                     : fmt::format("; staged: {}", kinds));
}

std::string device_markdown(const ordered_json& matrix) {
  std::string text = fmt::format(
      "\n## Device memory\n"
      "Of CUDA, with ranks that share one device: {}, {}. Every operation, dtype and reduce\n"
      "operation was compared with the reference, those over native and gloo to the bit; the\n"
      "table has f16 and f32. Staged: through pinned memory of the host.\n\n| operation |",
      matrix["machine"].get<std::string>(), matrix["date"].get<std::string>());
  std::string line = "|---|";
  std::vector<std::string> operations;
  for (const auto& [name, backend] : matrix["backends"].items()) {
    const auto ranks = backend["ranks"].get<std::vector<int>>();
    text += fmt::format(" {} ({} ranks) |", name, fmt::join(ranks, ", "));
    line += "---|";
    for (const auto& [operation, shown] : backend["operations"].items()) {
      const auto known = std::find(operations.begin(), operations.end(), operation);
      if (known == operations.end()) operations.push_back(operation);
    }
  }
  text += "\n" + line + "\n";
  for (const std::string& operation : operations) {
    text += fmt::format("| {} |", operation);
    for (const auto& [name, backend] : matrix["backends"].items()) {
      text += fmt::format(" {} |", cell_of(backend, operation));
    }
    text += "\n";
  }
  return text;
}

/// The same on every machine: docs/backends.md is this.
std::string markdown() {
  Sections sections;
  std::string devices;
  for (const Matrix& entry : matrices()) {
    if (entry.name == kDeviceMatrix) {
      devices = device_markdown(ordered_json::parse(entry.json));
      continue;
    }
    sections.add(entry.name, markdown_of(ordered_json::parse(entry.json)));
  }
  std::string text =
      "# Backends\n"
      "What each backend can do, as the conformance suite has shown it. Made by `tutti backends "
      "--markdown` from tests/conformance/matrix; do not edit.\n";
  for (const auto& [body, names] : sections.all()) text += fmt::format("\n## {}\n{}", names, body);
  return text + devices;
}

}  // namespace

std::vector<std::string> parts_beside() {
  const std::vector<std::string> where = folders();
  std::vector<std::string> names = group::list_plugins(where);
  const bool has_torch = std::any_of(where.begin(), where.end(), [](const std::string& folder) {
    std::error_code error;
    return std::filesystem::exists(std::filesystem::path(folder) / "libtutti_torch.so", error);
  });
  if (has_torch) names.emplace_back("torch");
  return names;
}

Manual backends_manual() {
  return {
      .name = "tutti backends",
      .summary = "say which backends there are, and what each can do",
      .usage = "[--json | --markdown]",
      .examples = {{"tutti backends", "what is here, and why something is not"},
                   {"tutti backends --json", "with every operation, dtype and reduce operation"},
                   {"tutti backends --markdown", "the matrix as docs/backends.md has it"}},
      .paragraphs =
          {"A backend is chosen by name: {.backend = \"gloo\"}, --backend gloo of the examples, or "
           "TUTTI_BACKEND=gloo. mpi is one of mpi_openmpi and mpi_mpich: the one that the process "
           "or its launcher uses, or the setting mpi. Plugins are searched beside the library, "
           "then in TUTTI_BACKEND_PATH. What a backend can do is what the conformance suite has "
           "shown."},
      .groups = {{"Options",
                  {{.names = {"--json"}, .text = "one JSON object"},
                   {.names = {"--markdown"}, .text = "the same on every machine"},
                   {.names = {"-h", "--help"}, .text = "this text"}}}}};
}

int backends_command(std::span<const std::string> words) {
  const std::set<std::string> given = flags_given(backends_manual(), words, true);
  if (given.contains("--help")) {
    print(help_text(backends_manual()));
  } else if (given.contains("--markdown")) {
    print(markdown());
  } else if (given.contains("--json")) {
    print(json_of(find_all()).dump(2) + "\n");
  } else {
    print(text_of(find_all()));
  }
  return 0;
}

}  // namespace tutti::cli
