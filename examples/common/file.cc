#include "common/file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace {

[[noreturn]] void cannot_be_written(const std::string& file) {
  throw std::runtime_error(file + ": cannot be written: " + std::strerror(errno));
}

}  // namespace

void put_in_place(const std::string& draft, const std::string& file) {
  if (std::rename(draft.c_str(), file.c_str()) == 0) return;
  const int why = errno;
  std::remove(draft.c_str());
  errno = why;
  cannot_be_written(file);
}

void write_file(const std::string& file, const std::string& text) {
  const std::string draft = file + ".part";
  std::FILE* const out = std::fopen(draft.c_str(), "w");
  if (out == nullptr) cannot_be_written(file);
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  if (std::fclose(out) != 0 || !written) cannot_be_written(file);
  put_in_place(draft, file);
}
