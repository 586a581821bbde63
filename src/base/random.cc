#include "base/random.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "tutti/error.h"

namespace tutti {

void fill_random(void* data, std::size_t byte_count) {
  auto* at = static_cast<unsigned char*>(data);
  while (byte_count > 0) {
    const ssize_t got = ::getrandom(at, byte_count, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Error(ErrorCode::kSystem, std::string("no random bytes from the kernel (getrandom: ") +
                                          std::strerror(errno) +
                                          "); a sandbox may forbid the call");
    }
    at += got;
    byte_count -= static_cast<std::size_t>(got);
  }
}

std::string random_name() {
  std::array<unsigned char, 16> bytes;
  fill_random(bytes.data(), bytes.size());
  std::string name;
  for (const unsigned char byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

}  // namespace tutti
