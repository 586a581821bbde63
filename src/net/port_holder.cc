#include "net/port_holder.h"

#include <dirent.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "net/process_info.h"
#include "net/unix_socket.h"

namespace tutti::net {
namespace {

struct Close {
  void operator()(DIR* folder) const { ::closedir(folder); }
};
using Folder = std::unique_ptr<DIR, Close>;

constexpr std::string_view kListening = "0A";

/// An address as /proc/net/tcp writes it: words of 32 bits, each as this machine reads it.
std::string in_hex(const void* bytes, std::size_t byte_count) {
  std::string text;
  for (std::size_t at = 0; at < byte_count; at += sizeof(std::uint32_t)) {
    std::uint32_t word = 0;
    std::memcpy(&word, static_cast<const char*>(bytes) + at, sizeof word);
    text += fmt::format("{:08X}", word);
  }
  return text;
}

/// Whether `local`, as the kernel's tables have it, stands in the way of all addresses of a family.
bool is_in_the_way_of_all(const TcpAddress& address, std::string_view local) {
  const bool is_any = address.host() == "0.0.0.0" || address.host() == "::";
  if (!is_any || !local.ends_with(fmt::format(":{:04X}", address.port()))) return false;
  constexpr std::size_t kDigitsOfV4 = 8;
  return address.family() == AF_INET6 || local.find(':') == kDigitsOfV4;
}

/// All that stands in the way of `address`: itself, and all addresses of the host at once.
std::vector<std::string> in_the_way(const TcpAddress& address) {
  const std::string port = fmt::format(":{:04X}", address.port());
  std::vector<std::string> taken = {std::string(8, '0') + port, std::string(32, '0') + port};
  if (address.family() == AF_INET6) {
    const auto& v6 = *reinterpret_cast<const sockaddr_in6*>(address.data());
    taken.push_back(in_hex(&v6.sin6_addr, sizeof v6.sin6_addr) + port);
  } else {
    const auto& v4 = *reinterpret_cast<const sockaddr_in*>(address.data());
    const std::string own = in_hex(&v4.sin_addr, sizeof v4.sin_addr) + port;
    taken.push_back(own);
    const std::array<unsigned char, 12> mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    taken.push_back(in_hex(mapped.data(), mapped.size()) + own);
  }
  return taken;
}

/// The inode of the socket there, one that listens before others; empty if none is seen.
std::string find_inode(const TcpAddress& address) {
  const std::vector<std::string> taken = in_the_way(address);
  std::string inode;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, queues, timer, again, user, timeout, its_inode;
      words >> number >> local >> remote >> state >> queues >> timer >> again >> user >> timeout >>
          its_inode;
      const bool is_named = std::find(taken.begin(), taken.end(), local) != taken.end();
      if (!is_named && !is_in_the_way_of_all(address, local)) continue;
      if (its_inode.empty() || its_inode == "0") continue;  // its process has ended
      if (state == kListening) return its_inode;
      inode = its_inode;
    }
  }
  return inode;
}

bool has_open(pid_t pid, const std::string& link) {
  const std::string path = fmt::format("/proc/{}/fd", pid);
  const Folder folder(::opendir(path.c_str()));
  if (!folder) return false;
  for (const dirent* entry = ::readdir(folder.get()); entry; entry = ::readdir(folder.get())) {
    std::array<char, 64> target{};
    const std::string name = path + "/" + entry->d_name;
    const ssize_t length = ::readlink(name.c_str(), target.data(), target.size());
    if (length > 0 && std::string_view(target.data(), static_cast<std::size_t>(length)) == link) {
      return true;
    }
  }
  return false;
}

std::string holder_of_socket(const std::string& inode) {
  if (inode.empty()) return {};
  const std::string link = fmt::format("socket:[{}]", inode);
  const Folder processes(::opendir("/proc"));
  if (!processes) return {};
  for (const dirent* entry = ::readdir(processes.get()); entry;
       entry = ::readdir(processes.get())) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    const auto [stop, problem] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (problem != std::errc() || stop != name.data() + name.size()) continue;
    if (has_open(pid, link)) return describe_process(pid);
  }
  return {};
}

/// Of the network namespace, as ports are. Sockets that share a port and do not listen (yet) do not
/// see each other in any other way.
std::string mark_of(int port) { return fmt::format("@tutti-port-{}", port); }

}  // namespace

std::string holder_of(const TcpAddress& address) { return holder_of_socket(find_inode(address)); }

std::string sharer_of(int port) {
  const std::string mark = mark_of(port);
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string number, references, protocol, flags, type, state, inode, path;
    words >> number >> references >> protocol >> flags >> type >> state >> inode >> path;
    if (path == mark) return holder_of_socket(inode);
  }
  return {};
}

HeldPort hold_port(int port) {
  HeldPort held{.socket = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const int yes = 1;
  if (held.socket &&
      ::setsockopt(held.socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
      ::bind(held.socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    held.port = TcpAddress::local(held.socket.get()).port();
    std::optional<Fd> mark = try_listen(mark_of(held.port));
    held.is_shared = !mark;
    if (mark) held.mark = *std::move(mark);
  } else {
    held.error_number = errno;
    held.socket.reset();
  }
  return held;
}

}  // namespace tutti::net
