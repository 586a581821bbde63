#include "net/security.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <system_error>

#include "net/fd.h"
#include "tutti/error.h"

namespace tutti::net {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"none", "opportunistic", "auth", "integrity"};

/// A secret of fewer could be guessed.
constexpr std::size_t kLeastSecret = 16, kMostSecret = 4096;

[[noreturn]] void reject(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

/// What a file says at most once, and to nobody else: how to make one.
constexpr std::string_view kMakeOne =
    "make one with `(umask 077; openssl rand -hex 32 > FILE)` and give all ranks a copy";

void check_owner(const struct stat& file, const std::string& name) {
  if (!S_ISREG(file.st_mode)) reject(fmt::format("{} is no regular file", name));
  if (file.st_uid != ::geteuid() && file.st_uid != 0) {
    reject(fmt::format("{} belongs to user {}: it must be this user's ({}) or root's", name,
                       file.st_uid, ::geteuid()));
  }
  if ((file.st_mode & 077) != 0) {
    reject(
        fmt::format("{} can be read or written by others (mode {:04o}): whoever could have read "
                    "it knows the secret. Make a new one, with chmod 600",
                    name, file.st_mode & 07777));
  }
}

/// Who takes TUTTI_SECRET_FILE for the secret must not find that in a log: only what can be nothing
/// but a path is shown.
std::string shown(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/') == path.npos ? 0 : path.rfind('/'));
  struct stat status {};
  const bool is_path = ::stat(path.c_str(), &status) == 0 ||
                       (!folder.empty() && ::stat(folder.c_str(), &status) == 0);
  return is_path ? path : "(not shown: if this is the secret itself, put it into a file)";
}

/// The bytes of the file, without line ends behind them: a copy may have lost those.
Key read_secret(const std::string& path) {
  const std::string name = fmt::format("the secret file {} (TUTTI_SECRET_FILE)", shown(path));
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat file {};
  if (!fd || ::fstat(fd.get(), &file) != 0) {
    reject(fmt::format("{} cannot be opened: {}", name, std::generic_category().message(errno)));
  }
  check_owner(file, name);
  std::array<std::byte, kMostSecret + 1> bytes;
  std::size_t count = 0;
  for (ssize_t got = 1; got > 0 && count < bytes.size(); count += static_cast<std::size_t>(got)) {
    got = ::read(fd.get(), bytes.data() + count, bytes.size() - count);
    if (got < 0) {
      reject(fmt::format("{} cannot be read: {}", name, std::generic_category().message(errno)));
    }
  }
  if (count > kMostSecret) reject(fmt::format("{} holds more than {} bytes", name, kMostSecret));
  while (count > 0 && (bytes[count - 1] == std::byte{'\n'} || bytes[count - 1] == std::byte{'\r'}))
    --count;
  if (count < kLeastSecret) {
    reject(fmt::format("{} holds {} bytes, at least {} are needed: {}", name, count, kLeastSecret,
                       kMakeOne));
  }
  Key secret = derive(std::span(bytes).first(count), {}, "tutti secret file");
  wipe(bytes);
  return secret;
}

}  // namespace

std::string_view name_of(Level level) noexcept { return kNames[static_cast<std::size_t>(level)]; }

std::optional<Level> level_of(std::string_view name) noexcept {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Level>(found - kNames.begin());
}

Security security_of(std::string_view level, const std::string& secret_file,
                     std::string_view what) {
  const auto known = level_of(level);
  if (!known) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}, and TUTTI_SECURITY={} asks that it be encrypted, which this "
                            "version does not do: start all ranks on one host, where no port is "
                            "opened, or use TUTTI_SECURITY=integrity in a network whose listeners "
                            "you trust",
                            what, level));
  }
  Security security{.level = *known};
  if (security.level < Level::auth) return security;
  if (secret_file.empty()) {
    reject(
        fmt::format("{}, and TUTTI_SECURITY={} needs a secret that all ranks know: set "
                    "TUTTI_SECRET_FILE to a file that holds it ({}), or give up the protection "
                    "with TUTTI_SECURITY=opportunistic",
                    what, level, kMakeOne));
  }
  security.secret = read_secret(secret_file);
  security.secret_file = shown(secret_file);
  return security;
}

}  // namespace tutti::net
