// Whatever another rank sends as an object: it is one, or refused in words. What was decoded says
// the same when it is encoded again.
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

#include "fuzz/input.h"
#include "tutti/codec.h"

namespace {

using namespace tutti;

struct Plain {
  std::int32_t a = 0;
  std::uint8_t b = 0;
  bool operator==(const Plain&) const = default;
};
using Nested = std::map<std::string, std::tuple<int, std::vector<std::optional<std::string>>,
                                                std::variant<bool, std::string, std::set<int>>>>;
using Lists =
    std::pair<std::vector<std::array<std::string, 2>>, std::unordered_map<int, std::vector<Plain>>>;

template <class T>
void take(std::span<const std::byte> bytes) {
  fuzz::take_or_refuse([&] {
    const T object = decode_object<T>(bytes);
    fuzz::require(decode_object<T>(encode_object(object)) == object);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  fuzz::Input input(data, byte_count);
  const std::uint8_t kind = input.byte();
  const auto bytes = input.piece(SIZE_MAX);
  switch (kind % 4) {
    case 0:
      take<Nested>(bytes);
      break;
    case 1:
      take<Lists>(bytes);
      break;
    case 2:
      take<std::vector<std::vector<std::uint64_t>>>(bytes);
      break;
    default:
      take<std::vector<bool>>(bytes);
  }
  return 0;
}
