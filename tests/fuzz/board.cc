// Whatever other processes, by mistake or not, have written on the status board: it is read, and
// nothing worse. So do ranks, and `tutti run` after its ranks have died.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "control/garbage.h"
#include "control/garbage_scene.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  using namespace tutti;
  using namespace tutti::control;
  testing::FLAGS_gtest_break_on_failure = true;
  fuzz::log_nothing();
  static Scene scene;
  static const std::vector<Stretch> stretches = scene.stretches();
  static const std::vector<std::byte> before(scene.board.data(),
                                             scene.board.data() + scene.board.byte_count());
  fuzz::Input input(data, byte_count);
  while (!input.is_empty()) {
    const Stretch& there = stretches[input.byte() % stretches.size()];
    const std::size_t at = input.byte() | input.byte() << 8;
    std::uint64_t value = 0;
    const auto bytes = input.piece(input.byte() % 9);
    std::memcpy(&value, bytes.data(), bytes.size());
    there.words[at % there.count].store(value);
  }
  read_everything(scene.board, scene.own);
  VotePlace(scene.board, scene.own, 2).take_over(1);
  std::memcpy(scene.board.data(), before.data(), before.size());
  return 0;
}
