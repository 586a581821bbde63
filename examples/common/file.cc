#include "common/file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace {

[[noreturn]] void cannot_be_written(const std::string& file) {
  throw std::runtime_error(file + ": cannot be written: " + std::strerror(errno));
}

}  // namespace

void write_file(const std::string& file, const std::string& bytes) {
  const std::string draft = file + ".part";
  std::FILE* const out = std::fopen(draft.c_str(), "w");
  if (out == nullptr) cannot_be_written(file);
  const bool is_on_disk = std::fwrite(bytes.data(), 1, bytes.size(), out) == bytes.size() &&
                          std::fflush(out) == 0 && ::fsync(::fileno(out)) == 0;
  const bool is_closed = std::fclose(out) == 0;
  if (is_on_disk && is_closed && std::rename(draft.c_str(), file.c_str()) == 0) return;
  const int why = errno;
  std::remove(draft.c_str());
  errno = why;
  cannot_be_written(file);
}
