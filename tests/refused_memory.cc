#include "refused_memory.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>

namespace tutti {

namespace {

thread_local std::size_t own_until = 0;

std::atomic<const char*> unlucky{nullptr};
std::atomic<std::size_t> first_refused{0}, count_refused{0}, calls{0}, refused{0};

bool is_refused() noexcept {
  if (own_until > 0 && --own_until == 0) return true;
  const char* const name = unlucky.load();
  if (name == nullptr) return false;
  std::array<char, 16> own = {};
  pthread_getname_np(pthread_self(), own.data(), own.size());
  if (std::string_view(own.data()) != name) return false;
  const std::size_t number = calls.fetch_add(1) + 1;
  if (number < first_refused || number >= first_refused + count_refused) return false;
  refused.fetch_add(1);
  return true;
}

}  // namespace

void refuse_own_memory(std::size_t until) { own_until = until; }

void refuse_memory_of(const char* thread_name, std::size_t first, std::size_t count) {
  calls = 0;
  first_refused = first;
  count_refused = count;
  unlucky = thread_name;
}

std::size_t refusals() noexcept { return refused; }

}  // namespace tutti

// Not inlined: g++ would see malloc meet delete, and warn.
[[gnu::noinline]] void* operator new(std::size_t byte_count) {
  void* const memory = tutti::is_refused() ? nullptr : std::malloc(byte_count);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
