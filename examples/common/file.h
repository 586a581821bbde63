// Files that are there whole or not at all.
#pragma once

#include <string>

/// Writes a draft beside FILE to the disk and then puts it in place. Throws std::runtime_error.
void write_file(const std::string& file, const std::string& bytes);
