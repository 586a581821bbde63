// Memory that is refused when a test wants it: refused_memory.cc replaces the operator new of its
// program.
#pragma once

#include <cstddef>

namespace tutti {

/// So many allocations of this thread are granted, the last one excepted; 0: all are.
void refuse_own_memory(std::size_t until);
/// The same of the thread of that name, which must be a literal: those from number `first` on,
/// `count` of them.
void refuse_memory_of(const char* thread_name, std::size_t first, std::size_t count);
/// How often that thread has been refused.
std::size_t refusals() noexcept;

}  // namespace tutti
