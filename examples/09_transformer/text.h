// A text to learn from, as numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// A character is a byte; its code is its place among those that occur.
struct Text {
  std::vector<std::uint8_t> codes;
  std::size_t alphabet = 0;  ///< how many different characters there are
};

/// Reads a file, or all files of a folder in the order of their names, without links and
/// subfolders; of all that the first `limit` characters, or 0: all.
/// Throws std::runtime_error: missing, not readable, shorter than `least` characters, over 64 MiB.
Text read_text(const std::string& path, std::size_t limit, std::size_t least);

/// The entropy of a character given the one before it, in nats: what the best table of character
/// pairs, made from this very part [begin, end) of the text, would lose on it.
double pair_entropy(const Text& text, std::size_t begin, std::size_t end);
