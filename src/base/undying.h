// Objects of the process that static objects which die late may still use.
#pragma once

#include <cstddef>
#include <new>

namespace tutti {

/// The only one of its type, made when it is first asked for. It is never destroyed, and takes no
/// memory: whoever has none left may be the first to ask.
template <class T>
T& undying() {
  alignas(T) static std::byte place[sizeof(T)];
  static T& object = *new (place) T;
  return object;
}

}  // namespace tutti
