#include "rendezvous/init_method.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/config.h"
#include "net/tcp.h"
#include "rendezvous/identity.h"
#include "tutti/error.h"

namespace tutti::rendezvous {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kEnv = "env://";
constexpr std::string_view kFile = "file://";
constexpr std::string_view kForm =
    "write tcp://HOST:PORT, tcp://HOST:PORT?rank=R&world_size=N (an IPv6 address in brackets), "
    "file:///PATH, or env://";

/// Reads one text; whatever is wrong is said together with all of it.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  InitMethod read();

 private:
  [[noreturn]] void reject(const std::string& why, std::string_view remedy = kForm) const {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("init_method '{}': {}; {}", text_.substr(0, 200), why, remedy));
  }
  int number(std::string_view what, std::string_view digits, int low, int high) const;
  void read_place(std::string_view place);
  void read_host(std::string_view host, bool is_bracketed);
  void read_path(std::string_view path);
  void read_query(std::string_view query);
  void read_parameter(std::string_view name, std::string_view value);

  const std::string_view text_;
  InitMethod method_;
};

int Reader::number(std::string_view what, std::string_view digits, int low, int high) const {
  int value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, problem] = std::from_chars(digits.data(), end, value);
  if (digits.empty()) reject(fmt::format("there is no {}", what));
  if (problem == std::errc::invalid_argument || stop != end) {
    reject(fmt::format("{} '{}' is no whole number", what, digits));
  }
  if (problem != std::errc() || value < low || value > high) {
    reject(fmt::format("{} {} is out of range, from {} to {}", what, digits, low, high));
  }
  return value;
}

void Reader::read_host(std::string_view host, bool is_bracketed) {
  if (host.empty()) reject("there is no host");
  if (host.find('@') != std::string_view::npos) {
    reject(fmt::format("there is a user in the host '{}'", host));
  }
  const auto is_odd = [](char c) {
    return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f || c == '[' || c == ']';
  };
  if (std::any_of(host.begin(), host.end(), is_odd)) {
    reject(fmt::format("'{}' is no name of a host", host));
  }
  const auto v6 = net::TcpAddress::parse(fmt::format("[{}]:1", host));
  const bool has_colon = host.find(':') != std::string_view::npos;
  if (has_colon && !is_bracketed) {
    reject(fmt::format("'{}' has colons: an IPv6 address stands in brackets, and there is one port",
                       host));
  }
  if (is_bracketed && !v6) reject(fmt::format("'[{}]' is no IPv6 address", host));
  const auto v4 = net::TcpAddress::parse(fmt::format("{}:1", host));
  if ((v6 && v6->is_wildcard()) || (v4 && v4->is_wildcard())) {
    reject(fmt::format("'{}' is all addresses of a host", host),
           "give the one at which the other ranks reach rank 0");
  }
  method_.host = host;
}

void Reader::read_place(std::string_view place) {
  if (place.ends_with('/')) place.remove_suffix(1);
  const std::size_t slash = place.find('/');
  if (slash != std::string_view::npos) {
    reject(fmt::format("there is a path, '{}', after the port", place.substr(slash)));
  }
  if (place.starts_with('[')) {
    const std::size_t close = place.find(']');
    if (close == std::string_view::npos) reject("the bracket before the host is not closed");
    if (place.substr(close + 1, 1) != ":") reject("there is no port after the bracket");
    method_.port = number("port", place.substr(close + 2), 1, 65535);
    return read_host(place.substr(1, close - 1), true);
  }
  const std::size_t colon = place.rfind(':');
  if (colon == std::string_view::npos) reject("there is no port");
  read_host(place.substr(0, colon), false);
  method_.port = number("port", place.substr(colon + 1), 1, 65535);
}

void Reader::read_path(std::string_view path) {
  if (!path.starts_with('/')) {
    reject(fmt::format("'{}' stands where the path begins: it is one from the root", path),
           "write file:///PATH, with three slashes");
  }
  if (path.ends_with('/')) reject(fmt::format("'{}' is a folder, not a file", path));
  if (path.find('\0') != std::string_view::npos) reject("there is a zero byte in the path");
  method_.path = path;
}

void Reader::read_parameter(std::string_view name, std::string_view value) {
  if (name == "rank") {
    if (method_.rank || method_.is_rank_auto) reject("rank is given twice");
    method_.is_rank_auto = value == "auto";
    if (!method_.is_rank_auto) method_.rank = number("rank", value, 0, kMaxWorldSize - 1);
  } else if (name == "world_size") {
    if (method_.world_size) reject("world_size is given twice");
    method_.world_size = number("world_size", value, 1, kMaxWorldSize);
  } else {
    const std::vector<std::string> known = {"rank", "world_size"};
    const std::string meant = nearest(name, known);
    reject(meant.empty()
               ? fmt::format("there is no parameter '{}'", name)
               : fmt::format("there is no parameter '{}', did you mean '{}'?", name, meant));
  }
}

void Reader::read_query(std::string_view query) {
  while (true) {
    const std::size_t end = query.find('&');
    const std::string_view part = query.substr(0, end);
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) reject(fmt::format("'{}' has no value", part));
    read_parameter(part.substr(0, equals), part.substr(equals + 1));
    if (end == std::string_view::npos) break;
    query.remove_prefix(end + 1);
  }
  if (method_.rank && method_.world_size && *method_.rank >= *method_.world_size) {
    reject(fmt::format("rank {} is out of range: world_size {} means ranks 0 to {}", *method_.rank,
                       *method_.world_size, *method_.world_size - 1));
  }
}

InitMethod Reader::read() {
  const std::size_t question = text_.find('?');
  const std::string_view before = text_.substr(0, question);
  if (before.starts_with(kTcp)) {
    method_.kind = InitMethod::Kind::tcp;
    read_place(before.substr(kTcp.size()));
  } else if (before.starts_with(kFile)) {
    method_.kind = InitMethod::Kind::file;
    read_path(before.substr(kFile.size()));
  } else if (before != kEnv) {
    const std::size_t end = before.find("://");
    if (before.starts_with(kEnv)) reject(fmt::format("'{}' after env://", before.substr(6)));
    reject(end == std::string_view::npos
               ? "it names no way to meet"
               : fmt::format("there is no way to meet '{}://'", before.substr(0, end)));
  }
  if (question != std::string_view::npos) read_query(text_.substr(question + 1));
  if (method_.is_rank_auto && method_.kind != InitMethod::Kind::tcp) {
    reject("numbers in the order of arrival are given at tcp:// only");
  }
  return method_;
}

}  // namespace

InitMethod parse_init_method(std::string_view text) {
  return text.empty() ? InitMethod() : Reader(text).read();
}

}  // namespace tutti::rendezvous
