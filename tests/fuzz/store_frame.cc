// Whatever a client sends, the server's parser answers or closes: it never crashes, never waits,
// and takes no memory for what has not been sent.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "store/session.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  using namespace tutti::store;
  // Two guests of one hall, so that calls of one wake waits of the other. The first byte of each
  // piece says whose it is and how long.
  Hall hall;
  std::unique_ptr<Guest> guests[2] = {std::make_unique<Guest>(hall), std::make_unique<Guest>(hall)};
  std::string hello;
  tutti::net::append_frame(&hello, encode(Hello{}));
  guests[0]->receive(std::as_bytes(std::span(hello)));
  guests[0]->welcome();
  while (byte_count > 0) {
    std::unique_ptr<Guest>& guest = guests[data[0] & 1];
    const std::size_t piece = std::min<std::size_t>(1 + data[0] / 2, byte_count - 1);
    if (!guest->receive(std::as_bytes(std::span(data + 1, piece)))) {
      guest = std::make_unique<Guest>(hall);
    } else if (guest->hello()) {
      guest->welcome();
    }
    if (guest->is_flooded()) guest = std::make_unique<Guest>(hall);
    data += 1 + piece;
    byte_count -= 1 + piece;
  }
  return 0;
}
