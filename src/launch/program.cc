#include "launch/program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "tutti/error.h"

namespace tutti::launch {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

bool is_program(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::string check_path(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    refuse(fmt::format("program {}: {}", path, std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) refuse(fmt::format("program {}: is a directory", path));
  if (::access(path.c_str(), X_OK) != 0) {
    refuse(fmt::format("program {}: not executable; try chmod +x {}, or name its interpreter first",
                       path, path));
  }
  return path;
}

}  // namespace

std::string find_program(std::string_view name, std::string_view search_path) {
  const std::string wanted(name);
  if (wanted.empty()) refuse("the program's name is empty");
  if (wanted.find('/') != std::string::npos) return check_path(wanted);
  std::string refused;  // found, but may not be executed
  for (std::size_t begin = 0; begin <= search_path.size();) {
    std::size_t end = search_path.find(':', begin);
    if (end == std::string_view::npos) end = search_path.size();
    const std::string_view folder = search_path.substr(begin, end - begin);
    std::string path = fmt::format("{}/{}", folder.empty() ? "." : folder, wanted);
    if (is_program(path)) return path;
    if (refused.empty() && ::access(path.c_str(), F_OK) == 0) refused = path;
    begin = end + 1;
  }
  if (is_program(wanted)) {
    refuse(fmt::format("program {}: not found in PATH; did you mean ./{}?", wanted, wanted));
  }
  if (!refused.empty()) return check_path(refused);
  refuse(fmt::format("program {}: not found in PATH", wanted));
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
