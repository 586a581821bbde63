#include "standin/trouble.h"

#include <cstdio>
#include <cstdlib>

namespace tutti::standin {

Trouble& Trouble::get() {
  static auto& trouble = *new Trouble;  // streams use it until the process ends
  return trouble;
}

std::size_t Trouble::known(const char* function) {
  const std::size_t index = index_of(function);
  if (index < kFunctions.size()) return index;
  std::fprintf(stderr, "the stand-in of CUDA has no %s\n", function);
  std::abort();
}

Injected Trouble::meet(std::size_t function) {
  calls_[function].fetch_add(1, kRelaxed);
  Injected met;
  if (injection_count_.load(kRelaxed) == 0) return met;
  const std::lock_guard lock(mutex_);
  std::erase_if(injections_, [&](Injection& injection) {
    if (injection.function != function || --injection.calls_left > 0) return false;
    switch (injection.kind) {
      case Kind::fail:
        met.result = injection.result;
        break;
      case Kind::fail_later:
        met.later = injection.result;
        break;
      case Kind::hang:
        met.gate = gates_.emplace_back(std::make_shared<Point>());
        break;
      case Kind::ignore:
        met.is_ignored = true;
        break;
    }
    return true;
  });
  injection_count_.store(injections_.size(), kRelaxed);
  return met;
}

void Trouble::inject(std::size_t function, int nth, Kind kind, int result) {
  const std::lock_guard lock(mutex_);
  injections_.push_back({function, nth, kind, result});
  injection_count_.store(injections_.size(), kRelaxed);
}

void Trouble::release() {
  const std::lock_guard lock(mutex_);
  for (const auto& gate : gates_) gate->reach();
  gates_.clear();
}

void Trouble::reset() {
  {
    const std::lock_guard lock(mutex_);
    injections_.clear();
    injection_count_.store(0, kRelaxed);
  }
  release();
  broken_.store(kSuccess, kRelaxed);
  for (auto& calls : calls_) calls.store(0, kRelaxed);
}

}  // namespace tutti::standin
