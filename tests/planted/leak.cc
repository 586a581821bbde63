// Preloaded into a test that counts its open descriptors, which must report it: shared memory is
// not closed any more.
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string_view>

extern "C" __attribute__((visibility("default"))) int close(int fd) {
  std::array<char, 64> link{}, file{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const auto length = ::readlink(link.data(), file.data(), file.size());
  const std::string_view name(file.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  if (name.substr(0, 7) == "/memfd:") return 0;  // planted
  return static_cast<int>(::syscall(SYS_close, fd));
}
