// Reads the IDX files of MNIST and its relatives, gzip-compressed or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// One set: `count` images of `rows` x `columns` bytes, and a label for each.
struct ImageSet {
  std::size_t count = 0, rows = 0, columns = 0;
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
};

/// Reads FOLDER/NAME-images-idx3-ubyte.gz and FOLDER/NAME-labels-idx1-ubyte.gz; "train" or "t10k".
/// Throws std::runtime_error saying which file is missing, cut short or no IDX file, and where to
/// get the right one.
ImageSet read_image_set(const std::string& folder, const std::string& name);
