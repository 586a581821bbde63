// Randomness from the kernel: for names that nobody can guess.
#pragma once

#include <cstddef>
#include <string>

namespace tutti {

void fill_random(void* data, std::size_t byte_count);
/// 128 bits as 32 hexadecimal digits.
std::string random_name();

}  // namespace tutti
