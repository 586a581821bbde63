// Atomic operations as steps: the product's code is compiled with -fsanitize=thread, so that the
// compiler calls these functions for every access, and linked without TSan's run-time.
#include <cstddef>
#include <cstdint>

#include "simulate/kernel.h"
#include "simulate/region.h"

namespace {

void step(const volatile void* at) noexcept {
  auto* const kernel = tutti::simulate::Kernel::running();
  if (kernel == nullptr || !kernel->inside()) return;
  tutti::simulate::is_shared(at) ? kernel->step() : kernel->own_step();
}

}  // namespace

// Before the operation: whoever is put aside, stops or dies there has not done it.
#define TUTTI_STEP_ATOMIC(bits)                                                              \
  using a##bits = std::uint##bits##_t;                                                       \
  a##bits __tsan_atomic##bits##_load(const volatile a##bits* at, int) {                      \
    step(at);                                                                                \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                            \
  }                                                                                          \
  void __tsan_atomic##bits##_store(volatile a##bits* at, a##bits value, int) {               \
    step(at);                                                                                \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                           \
  }                                                                                          \
  a##bits __tsan_atomic##bits##_exchange(volatile a##bits* at, a##bits value, int) {         \
    step(at);                                                                                \
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                 \
  }                                                                                          \
  a##bits __tsan_atomic##bits##_fetch_add(volatile a##bits* at, a##bits value, int) {        \
    step(at);                                                                                \
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                  \
  }                                                                                          \
  a##bits __tsan_atomic##bits##_fetch_sub(volatile a##bits* at, a##bits value, int) {        \
    step(at);                                                                                \
    return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);                                  \
  }                                                                                          \
  a##bits __tsan_atomic##bits##_fetch_and(volatile a##bits* at, a##bits value, int) {        \
    step(at);                                                                                \
    return __atomic_fetch_and(at, value, __ATOMIC_SEQ_CST);                                  \
  }                                                                                          \
  a##bits __tsan_atomic##bits##_fetch_or(volatile a##bits* at, a##bits value, int) {         \
    step(at);                                                                                \
    return __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST);                                   \
  }                                                                                          \
  a##bits __tsan_atomic##bits##_fetch_xor(volatile a##bits* at, a##bits value, int) {        \
    step(at);                                                                                \
    return __atomic_fetch_xor(at, value, __ATOMIC_SEQ_CST);                                  \
  }                                                                                          \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile a##bits* at, a##bits* expected, \
                                                    a##bits value, int, int) {               \
    step(at);                                                                                \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST,         \
                                       __ATOMIC_SEQ_CST);                                    \
  }                                                                                          \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile a##bits* at, a##bits* expected,   \
                                                  a##bits value, int, int) {                 \
    step(at);                                                                                \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST,         \
                                       __ATOMIC_SEQ_CST);                                    \
  }

#define TUTTI_PLAIN(name) \
  void __tsan_##name(void*) {}

extern "C" {
TUTTI_STEP_ATOMIC(8)
TUTTI_STEP_ATOMIC(16)
TUTTI_STEP_ATOMIC(32)
TUTTI_STEP_ATOMIC(64)
TUTTI_PLAIN(read1)
TUTTI_PLAIN(read2)
TUTTI_PLAIN(read4)
TUTTI_PLAIN(read8)
TUTTI_PLAIN(read16)
TUTTI_PLAIN(write1)
TUTTI_PLAIN(write2)
TUTTI_PLAIN(write4)
TUTTI_PLAIN(write8)
TUTTI_PLAIN(write16)
TUTTI_PLAIN(unaligned_read2)
TUTTI_PLAIN(unaligned_read4)
TUTTI_PLAIN(unaligned_read8)
TUTTI_PLAIN(unaligned_read16)
TUTTI_PLAIN(unaligned_write2)
TUTTI_PLAIN(unaligned_write4)
TUTTI_PLAIN(unaligned_write8)
TUTTI_PLAIN(unaligned_write16)
TUTTI_PLAIN(func_entry)
TUTTI_PLAIN(vptr_read)
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void*, std::size_t) {}
void __tsan_write_range(void*, std::size_t) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
}
