#include "text.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <stdexcept>

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = std::size_t{1} << 26, kPieceBytes = std::size_t{1} << 16;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + ": " + what + "; --text names a file or a folder of files");
}

std::vector<std::string> files_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (!entry.is_symlink() && entry.is_regular_file()) files.push_back(entry.path().string());
  }
  if (error) fail(path, error.message());
  std::sort(files.begin(), files.end());
  return files;
}

/// Appends the file, up to `most` bytes in all.
void append(const std::string& file, std::size_t most, std::vector<std::uint8_t>* bytes) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(file.c_str(), "rb"),
                                                           std::fclose);
  if (in == nullptr) fail(file, std::strerror(errno));
  while (bytes->size() < most) {
    const std::size_t done = bytes->size();
    bytes->resize(std::min(most, done + kPieceBytes));
    errno = 0;
    const std::size_t got = std::fread(bytes->data() + done, 1, bytes->size() - done, in.get());
    bytes->resize(done + got);
    if (std::ferror(in.get()) != 0) fail(file, std::strerror(errno));
    if (got == 0) return;
  }
}

}  // namespace

Text read_text(const std::string& path, std::size_t limit, std::size_t least) {
  Text text;
  const std::size_t most = limit == 0 ? kMostBytes + 1 : std::min(limit, kMostBytes);
  for (const std::string& file : files_of(path)) append(file, most, &text.codes);
  if (text.codes.size() > kMostBytes) fail(path, "is over 64 MiB: --limit takes a part of it");
  if (text.codes.size() < least) {
    fail(path, "holds " + std::to_string(text.codes.size()) +
                   " characters; one sample to train on and one held out take " +
                   std::to_string(least));
  }
  std::array<std::uint8_t, 256> codes{};
  for (const std::uint8_t character : text.codes) codes[character] = 1;
  for (std::uint8_t& code : codes) {
    if (code != 0) code = static_cast<std::uint8_t>(text.alphabet++);
  }
  for (std::uint8_t& character : text.codes) character = codes[character];
  return text;
}

double pair_entropy(const Text& text, std::size_t begin, std::size_t end) {
  std::vector<double> pairs(text.alphabet * text.alphabet), firsts(text.alphabet);
  for (std::size_t i = begin + 1; i < end; ++i) {
    ++pairs[text.codes[i - 1] * text.alphabet + text.codes[i]];
    ++firsts[text.codes[i - 1]];
  }
  double sum = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i] > 0) sum += pairs[i] * std::log(firsts[i / text.alphabet] / pairs[i]);
  }
  return sum / static_cast<double>(end - begin - 1);
}
