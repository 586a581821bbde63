#include "launch/slots.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "launch/lines.h"
#include "net/fd.h"
#include "net/interfaces.h"
#include "net/process_info.h"
#include "net/resolve.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

constexpr std::chrono::seconds kLookUp{2};
constexpr int kMostSlots = 1 << 20;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

/// The pieces of `text` between `ends`.
std::vector<std::string_view> split(std::string_view text, std::string_view ends) {
  std::vector<std::string_view> pieces;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(ends, begin), text.size());
    pieces.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return pieces;
}

std::optional<int> parse_slots(std::string_view text) {
  int slots = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slots);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || slots < 1 || slots > kMostSlots) return std::nullopt;
  return slots;
}

std::string without_user(std::string_view name) {
  return std::string(name.substr(name.find('@') == name.npos ? 0 : name.find('@') + 1));
}

/// Where the slots of "name:4" begin; the colons of an address in brackets are its own.
std::size_t colon_of_slots(std::string_view entry) {
  const std::size_t closing = entry.find(']');
  return entry.find(':', closing == entry.npos ? 0 : closing);
}

void add(std::vector<HostSlots>& hosts, const std::string& name, int slots) {
  const auto known = std::find_if(hosts.begin(), hosts.end(),
                                  [&](const HostSlots& host) { return host.name == name; });
  if (known == hosts.end()) {
    hosts.push_back({name, slots});
  } else {
    known->slots = std::min(known->slots + slots, kMostSlots);
  }
}

std::string lower(std::string_view text) {
  std::string low(text);
  for (char& letter : low) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return low;
}

std::string without_domain(const std::string& name) { return name.substr(0, name.find('.')); }

}  // namespace

std::vector<HostSlots> parse_host_list(std::string_view word, std::string_view text) {
  std::vector<HostSlots> hosts;
  for (const std::string_view piece : split(text, ",")) {
    const std::string_view entry = without_spaces(piece);
    const std::size_t colon = colon_of_slots(entry);
    const std::string name = without_user(entry.substr(0, colon));
    const auto slots =
        colon == entry.npos ? std::optional(1) : parse_slots(entry.substr(colon + 1));
    if (name.empty() || !slots) {
      refuse(fmt::format("{} {}: \"{}\" is no host; write NAME or NAME:SLOTS, as in a:2,b:2", word,
                         excerpt(text), excerpt(entry)));
    }
    add(hosts, name, *slots);
  }
  return hosts;
}

std::string read_hostfile(std::string_view word, const std::string& path) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const net::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(kMost + 1, '\0');
  std::size_t size = 0;
  ssize_t got = file ? 1 : -1;
  while (got > 0 && size < text.size()) {
    got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got > 0) size += static_cast<std::size_t>(got);
  }
  if (got < 0) refuse(fmt::format("{} {}: cannot be read: {}", word, path, std::strerror(errno)));
  if (size > kMost) {
    refuse(
        fmt::format("{} {}: is longer than {} bytes; give a file with a line for each host, "
                    "as in: name slots=8",
                    word, path, kMost));
  }
  text.resize(size);
  return text;
}

std::vector<HostSlots> parse_hostfile(std::string_view file, std::string_view text) {
  std::vector<HostSlots> hosts;
  int number = 0;
  const auto refuse_word = [&](std::string_view word) {
    refuse(fmt::format("{}:{}: cannot read \"{}\"; a line is: name slots=8", file, number,
                       excerpt(word)));
  };
  for (const std::string_view line : split(text, "\n")) {
    ++number;
    const std::string_view entry = without_spaces(line.substr(0, line.find('#')));
    if (entry.empty()) continue;
    std::string name;
    std::optional<int> slots, limit;
    for (const std::string_view word : split(entry, " \t")) {
      if (word.empty()) continue;
      if (name.empty()) {
        std::size_t colon = colon_of_slots(word);
        if (colon != word.npos && word.find(':', colon + 1) != word.npos)
          colon = word.npos;  // an address of IPv6 without brackets
        name = without_user(word.substr(0, colon));
        if (name.empty()) break;
        if (colon != word.npos) slots = parse_slots(word.substr(colon + 1));
        if (colon != word.npos && !slots) refuse_word(word);
        continue;
      }
      const std::size_t equals = word.find('=');
      const std::string key(word.substr(0, equals));
      const auto value = equals == word.npos ? std::nullopt : parse_slots(word.substr(equals + 1));
      if (!value || (key != "slots" && key != "max_slots" && key != "max-slots")) {
        refuse_word(word);
      }
      (key == "slots" ? slots : limit) = value;
    }
    if (name.empty()) refuse(fmt::format("{}:{}: no name of a host", file, number));
    add(hosts, name, slots.value_or(limit.value_or(1)));  // Open MPI counts the limit, too
  }
  if (hosts.empty()) refuse(fmt::format("{}: names no host", file));
  return hosts;
}

bool is_this_host(const std::string& name) {
  const std::string asked = lower(name), own = lower(net::own_host_name());
  if (asked == own || asked == "localhost") return true;
  const bool is_short = asked.find('.') == asked.npos || own.find('.') == own.npos;
  if (is_short && without_domain(asked) == without_domain(own)) return true;
  try {
    Deadline deadline = Deadline::after(kLookUp);
    const auto addresses = net::resolve(name, 0, deadline);
    const auto interfaces = net::interfaces_of_this_host();
    return std::any_of(addresses.begin(), addresses.end(), [&](const net::TcpAddress& address) {
      if (address.host().starts_with("127.")) return true;
      return std::any_of(interfaces.begin(), interfaces.end(), [&](const net::Interface& each) {
        return each.address.host() == address.host();
      });
    });
  } catch (const Error&) {
    return false;  // nobody knows it
  }
}

int ranks_on(const std::vector<HostSlots>& hosts, std::optional<int> asked, bool oversubscribe) {
  for (const HostSlots& host : hosts) {
    if (is_this_host(host.name)) continue;
    refuse(fmt::format(
        "host {} is not this one ({}), and tutti run starts ranks on this host only: start them "
        "there by mpirun or srun, or by hand with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        excerpt(host.name), net::own_host_name()));
  }
  if (hosts.empty()) return asked.value_or(1);
  int slots = 0;
  for (const HostSlots& host : hosts) slots = std::min(slots + host.slots, kMostSlots);
  const int ranks = asked.value_or(slots);
  if (ranks > slots && !oversubscribe) {
    std::string given;
    for (const HostSlots& host : hosts)
      given += fmt::format(" {}:{}", excerpt(host.name), host.slots);
    refuse(
        fmt::format("not enough slots: {} ranks asked, hosts{} give {}; more with "
                    "--oversubscribe",
                    ranks, excerpt(given, 200), slots));
  }
  return ranks;
}

}  // namespace tutti::launch
