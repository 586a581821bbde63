// Memory of a device for conformance runs, of the program that tests have there.
#pragma once

#include <memory>

#include "standin/program.h"
#include "tutti/test_kit.h"

namespace tutti::standin {

/// The whole array, in order with the stream.
template <class T>
Buffer buffer_of(const DeviceArray<T>& array, const TestStream& stream) {
  return Buffer::cuda(array.data(), array.count(), array.device(), stream.stream().handle);
}

/// `stream` must outlive it.
inline test_kit::DeviceMemory memory_of(const TestStream& stream) {
  const auto copy = [&stream](void* to, const void* from, std::size_t byte_count) {
    const auto address = [](const void* pointer) {
      return static_cast<Driver::Address>(reinterpret_cast<std::uintptr_t>(pointer));
    };
    const OnDevice current(stream.device());
    Driver::check(
        Driver::get().copy(address(to), address(from), byte_count, stream.stream().handle),
        "cuMemcpyAsync");
  };
  return {.device = {Device::Kind::cuda, static_cast<std::int16_t>(stream.device())},
          .stream = stream.stream(),
          .allocate = [&stream](std::size_t byte_count) -> std::shared_ptr<void> {
            auto array = std::make_shared<DeviceArray<std::byte>>(
                stream.device(), std::max<std::size_t>(byte_count, 1));
            void* const data = array->data();
            return {std::move(array), data};
          },
          .copy_there = copy,
          .copy_back =
              [copy, &stream](void* to, const void* from, std::size_t byte_count) {
                copy(to, from, byte_count);
                stream.synchronize();
              }};
}

}  // namespace tutti::standin
