// Whatever stands in the files of a data set: the examples read it or say what is wrong with it.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "common/idx.h"
#include "fuzz/input.h"

namespace {

struct Folder {
  Folder() { std::filesystem::create_directory(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  const std::string path =
      std::filesystem::temp_directory_path() / ("tutti_fuzz_data_" + std::to_string(::getpid()));
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  using tutti::fuzz::require;
  static const Folder folder;
  tutti::fuzz::Input input(data, byte_count);
  const std::size_t label_bytes = input.byte();
  std::ofstream(folder.path + "/train-labels-idx1-ubyte.gz", std::ios::binary)
      << input.text(label_bytes);
  std::ofstream(folder.path + "/train-images-idx3-ubyte.gz", std::ios::binary) << input.text();
  try {
    const ImageSet set = read_image_set(folder.path, "train");
    require(set.count > 0 && set.labels.size() == set.count);
    require(set.pixels.size() == set.count * set.rows * set.columns);
  } catch (const std::runtime_error& error) {
    require(std::string(error.what()).starts_with(folder.path));
  }
  return 0;
}
