#include "common/idx.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 32, kPieceBytes = std::size_t{1} << 20;

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw std::runtime_error(file + ": " + what +
                           ". Fashion-MNIST is in the Debian package dataset-fashion-mnist (apt "
                           "install dataset-fashion-mnist); --data names another folder.");
}

class GzipFile {
 public:
  explicit GzipFile(std::string name) : name_(std::move(name)), file_(gzopen(name_.c_str(), "rb")) {
    if (file_ == nullptr) fail(name_, std::strerror(errno));
  }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;
  ~GzipFile() { gzclose(file_); }

  /// Memory grows with what is there, not with what a header has said.
  std::vector<std::uint8_t> read(std::size_t byte_count) {
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < byte_count) {
      const std::size_t done = bytes.size();
      bytes.resize(std::min(byte_count, done + kPieceBytes));
      const int got =
          gzread(file_, bytes.data() + done, static_cast<unsigned>(bytes.size() - done));
      if (got <= 0) {
        fail(name_, "is cut short or damaged: " + std::to_string(total_ + done) +
                        " bytes unpacked, " + std::to_string(total_ + byte_count) + " expected");
      }
      bytes.resize(done + static_cast<std::size_t>(got));
    }
    total_ += byte_count;
    return bytes;
  }

  std::size_t read_number() {
    const std::vector<std::uint8_t> bytes = read(4);
    return std::size_t{bytes[0]} << 24 | std::size_t{bytes[1]} << 16 | std::size_t{bytes[2]} << 8 |
           bytes[3];
  }

 private:
  const std::string name_;
  const gzFile file_;
  std::size_t total_ = 0;
};

/// Reads an IDX file of bytes and returns its sizes, outermost first.
std::vector<std::size_t> read_idx(const std::string& name, std::size_t dimensions,
                                  std::vector<std::uint8_t>* bytes) {
  GzipFile file(name);
  const std::size_t expected = 0x0800 | dimensions;  // 08: unsigned bytes
  const std::size_t magic = file.read_number();
  if (magic != expected) {
    char text[96];
    std::snprintf(text, sizeof(text), "is no IDX file of this kind: begins with %08zx, not %08zx",
                  magic, expected);
    fail(name, text);
  }
  std::vector<std::size_t> sizes;
  std::size_t byte_count = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    sizes.push_back(file.read_number());
    byte_count *= sizes.back();
    if (byte_count == 0 || byte_count > kMostBytes) fail(name, "its header gives senseless sizes");
  }
  *bytes = file.read(byte_count);
  return sizes;
}

}  // namespace

ImageSet read_image_set(const std::string& folder, const std::string& name) {
  ImageSet set;
  const std::string images = folder + "/" + name + "-images-idx3-ubyte.gz";
  const std::string labels = folder + "/" + name + "-labels-idx1-ubyte.gz";
  const auto sizes = read_idx(images, 3, &set.pixels);
  set.count = sizes[0];
  set.rows = sizes[1];
  set.columns = sizes[2];
  if (read_idx(labels, 1, &set.labels)[0] != set.count) {
    fail(labels, "holds " + std::to_string(set.labels.size()) + " labels for " +
                     std::to_string(set.count) + " images");
  }
  if (set.rows != 28 || set.columns != 28) {
    fail(images, "holds images of " + std::to_string(set.rows) + " x " +
                     std::to_string(set.columns) + ", not 28 x 28");
  }
  return set;
}
