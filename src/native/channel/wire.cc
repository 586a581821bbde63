#include "native/channel/wire.h"

#include <type_traits>

#include "base/crc32c.h"

namespace tutti::native {
namespace {

constexpr std::size_t kChecked = kWireHeaderBytes - sizeof(std::uint32_t);

class Writer {
 public:
  explicit Writer(std::byte* out) noexcept : next_(out) {}
  template <class Number>
  void put(Number number) noexcept {
    const auto value = static_cast<std::make_unsigned_t<Number>>(number);
    for (std::size_t i = 0; i < sizeof value; ++i) {
      *next_++ = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
    }
  }

 private:
  std::byte* next_;
};

class Reader {
 public:
  explicit Reader(const std::byte* in) noexcept : next_(in) {}
  template <class Number>
  void get(Number* number) noexcept {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof *number; ++i) {
      value |= std::to_integer<std::uint64_t>(*next_++) << (8 * i);
    }
    *number = static_cast<Number>(value);
  }

 private:
  const std::byte* next_;
};

/// The one place that says in which order the fields go.
template <class Header, class Each>
void visit_fields(Header& header, Each&& each) {
  each(header.payload_bytes);
  each(header.tag);
  each(header.segment);
  each(header.what.root_or_peer);
  each(header.id);
  each(header.what.seq);
  each(header.what.chain);
  each(header.what.count);
  each(header.what.op);
  each(header.what.dtype);
  each(header.what.reduce);
  each(header.what.site);
}

}  // namespace

WireHeader encode(const FrameHeader& header) noexcept {
  WireHeader bytes{};
  Writer writer(bytes.data());
  visit_fields(header, [&](const auto& field) { writer.put(field); });
  writer.put(static_cast<std::uint8_t>(header.type));
  Writer(bytes.data() + kChecked).put(crc32c({bytes.data(), kChecked}));
  return bytes;
}

std::optional<FrameHeader> decode(std::span<const std::byte, kWireHeaderBytes> bytes) noexcept {
  std::uint32_t checksum = 0;
  Reader(bytes.data() + kChecked).get(&checksum);
  if (checksum != crc32c(bytes.first<kChecked>())) return std::nullopt;
  FrameHeader header;
  Reader reader(bytes.data());
  visit_fields(header, [&](auto& field) { reader.get(&field); });
  std::uint8_t type = 0;
  reader.get(&type);
  header.type = static_cast<FrameType>(type);
  const bool is_sent = header.type > FrameType::padding && header.type <= kLastFrameType;
  return is_sent ? std::optional(header) : std::nullopt;
}

}  // namespace tutti::native
