// Files that are there whole or not at all.
#pragma once

#include <string>

/// DRAFT becomes FILE. Throws std::runtime_error.
void put_in_place(const std::string& draft, const std::string& file);

/// Writes a draft beside FILE and puts it in place. Throws std::runtime_error.
void write_file(const std::string& file, const std::string& text);
