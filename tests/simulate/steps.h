// Atomic operations as steps. The simulator has the product's code compiled with this header before
// everything else: what std::atomic is made of calls step() first. What a shared_ptr counts is no
// step: its functions are the same for the linker in the simulator's own code.
#pragma once

#include <bits/shared_ptr_base.h>

namespace tutti::simulate {

/// Before an atomic operation at an address: whoever is put aside, stops or dies there has not done
/// it.
void step(const volatile void* at) noexcept;

}  // namespace tutti::simulate

#define TUTTI_STEP(operation, at, ...) (tutti::simulate::step(at), operation(at, __VA_ARGS__))

#define __atomic_load(at, ...) TUTTI_STEP(__atomic_load, at, __VA_ARGS__)
#define __atomic_load_n(at, ...) TUTTI_STEP(__atomic_load_n, at, __VA_ARGS__)
#define __atomic_store(at, ...) TUTTI_STEP(__atomic_store, at, __VA_ARGS__)
#define __atomic_store_n(at, ...) TUTTI_STEP(__atomic_store_n, at, __VA_ARGS__)
#define __atomic_exchange(at, ...) TUTTI_STEP(__atomic_exchange, at, __VA_ARGS__)
#define __atomic_exchange_n(at, ...) TUTTI_STEP(__atomic_exchange_n, at, __VA_ARGS__)
#define __atomic_compare_exchange(at, ...) TUTTI_STEP(__atomic_compare_exchange, at, __VA_ARGS__)
#define __atomic_compare_exchange_n(at, ...) \
  TUTTI_STEP(__atomic_compare_exchange_n, at, __VA_ARGS__)
#define __atomic_fetch_add(at, ...) TUTTI_STEP(__atomic_fetch_add, at, __VA_ARGS__)
#define __atomic_fetch_sub(at, ...) TUTTI_STEP(__atomic_fetch_sub, at, __VA_ARGS__)
#define __atomic_fetch_and(at, ...) TUTTI_STEP(__atomic_fetch_and, at, __VA_ARGS__)
#define __atomic_fetch_or(at, ...) TUTTI_STEP(__atomic_fetch_or, at, __VA_ARGS__)
#define __atomic_fetch_xor(at, ...) TUTTI_STEP(__atomic_fetch_xor, at, __VA_ARGS__)
#define __atomic_add_fetch(at, ...) TUTTI_STEP(__atomic_add_fetch, at, __VA_ARGS__)
#define __atomic_sub_fetch(at, ...) TUTTI_STEP(__atomic_sub_fetch, at, __VA_ARGS__)
#define __atomic_and_fetch(at, ...) TUTTI_STEP(__atomic_and_fetch, at, __VA_ARGS__)
#define __atomic_or_fetch(at, ...) TUTTI_STEP(__atomic_or_fetch, at, __VA_ARGS__)
#define __atomic_xor_fetch(at, ...) TUTTI_STEP(__atomic_xor_fetch, at, __VA_ARGS__)
#define __atomic_test_and_set(at, ...) TUTTI_STEP(__atomic_test_and_set, at, __VA_ARGS__)
#define __atomic_clear(at, ...) TUTTI_STEP(__atomic_clear, at, __VA_ARGS__)
