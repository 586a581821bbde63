#include "launch/program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "launch/lines.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

bool is_file(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_program(const std::string& path) {
  return is_file(path) && ::access(path.c_str(), X_OK) == 0;
}

/// What stat has said of `path`; in a folder that was removed nothing else is worth saying.
std::string explain_missing(const std::string& path, int error_number) {
  std::error_code gone;
  (void)std::filesystem::current_path(gone);
  const bool is_here = error_number == ENOENT && !path.starts_with('/');
  if (!is_here || !gone) return std::strerror(error_number);
  return "the working folder was removed; cd to one that is there";
}

void check_folder(const std::string& folder) {
  struct stat status = {};
  if (::stat(folder.c_str(), &status) != 0) {
    refuse(fmt::format("--wdir {}: {}", folder, explain_missing(folder, errno)));
  }
  if (!S_ISDIR(status.st_mode)) refuse(fmt::format("--wdir {}: is no folder", folder));
  if (::access(folder.c_str(), X_OK) != 0) {
    refuse(fmt::format("--wdir {}: {}", folder, std::strerror(errno)));
  }
}

/// As it will be found from `folder`.
std::string within(const std::string& folder, const std::string& path) {
  return folder.empty() || path.starts_with('/') ? path : folder + "/" + path;
}

/// Returns it as it was given.
std::string check_path(const std::string& given, const std::string& folder) {
  const std::string path = within(folder, given);
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    refuse(fmt::format("program {}: {}", path, explain_missing(path, errno)));
  }
  if (S_ISDIR(status.st_mode)) refuse(fmt::format("program {}: is a directory", path));
  if (::access(path.c_str(), X_OK) != 0) {
    refuse(fmt::format("program {}: not executable; try chmod +x {}, or name its interpreter first",
                       path, path));
  }
  return given;
}

}  // namespace

std::string find_program(std::string_view name, std::string_view search_path,
                         const std::string& folder) {
  const std::string wanted(name);
  if (!folder.empty()) check_folder(folder);
  if (wanted.empty()) refuse("the program's name is empty");
  if (wanted.find('/') != std::string::npos) return check_path(wanted, folder);
  std::string refused;  // found, but may not be executed
  for (std::size_t begin = 0; begin <= search_path.size();) {
    std::size_t end = search_path.find(':', begin);
    if (end == std::string_view::npos) end = search_path.size();
    const std::string_view here = search_path.substr(begin, end - begin);
    std::string path = fmt::format("{}/{}", here.empty() ? "." : here, wanted);
    const std::string from_folder = within(folder, path);
    if (is_program(from_folder)) return path;
    if (refused.empty() && is_file(from_folder)) refused = path;
    begin = end + 1;
  }
  if (is_program(within(folder, wanted))) {
    refuse(fmt::format("program {}: not found in PATH; did you mean ./{}?", wanted, wanted));
  }
  if (!refused.empty()) return check_path(refused, folder);
  std::error_code unknown;
  if (std::filesystem::is_directory(within(folder, wanted), unknown))
    refuse(fmt::format("program {}: is a directory", wanted));
  refuse(fmt::format("program {}: not found in PATH", wanted));
}

void check_script(const std::vector<std::string>& command, const std::string& folder) {
  const bool has_script =
      command.size() > 2 && command[0] == "python3" && command[1] == "-u" && command[2] != "-m";
  if (!has_script || !command[2].ends_with(".py")) return;
  const std::string path = within(folder, command[2]);
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    refuse(fmt::format("program {}: {}", path, explain_missing(path, errno)));
  }
}

std::string explain_refusal(const std::string& path, int error_number) {
  constexpr std::size_t kMostOfALine = 255;  // the kernel's
  std::string text = std::strerror(error_number);
  if (error_number == ENOEXEC) return text + "; does a script begin with #! and its interpreter?";
  if (error_number != ENOENT || ::access(path.c_str(), F_OK) != 0) return text;
  std::ifstream file(path, std::ios::binary);
  std::string line(kMostOfALine, '\0');
  file.read(line.data(), kMostOfALine);
  if (!line.starts_with("#!")) return text + "; the file is there, and its loader is not";
  const std::size_t begin = std::min(line.find_first_not_of(" \t", 2), kMostOfALine);
  const std::size_t end =
      std::min(line.find_first_of(std::string_view(" \t\n\0", 4), begin), kMostOfALine);
  return fmt::format("{}; its first line names {}, which is not there", text,
                     without_control_characters(line.substr(begin, end - begin)));
}

bool has_openmp(pid_t pid) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    const std::string_view file = std::string_view(line).substr(line.rfind('/') + 1);
    if (file.starts_with("libgomp") || file.starts_with("libomp") || file.starts_with("libiomp")) {
      return true;
    }
  }
  return false;
}

}  // namespace tutti::launch
