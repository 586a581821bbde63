// Whatever ranks print, in whatever pieces it comes: lines are shown and remembered, no control
// character of a failed rank's last lines comes to the terminal, and memory is bounded.
#include <fcntl.h>

#include <cctype>
#include <cstdint>
#include <string>

#include "fuzz/input.h"
#include "launch/lines.h"
#include "launch/output.h"
#include "net/fd.h"

namespace {

using namespace tutti;

constexpr int kRanks = 3;

void write_all(launch::Output& output) {
  for (const launch::Stream stream : {launch::Stream::out, launch::Stream::err}) {
    while (output.awaited(stream) >= 0) output.write_some(stream);
  }
}

void look_at(const std::string& line, int columns) {
  for (const char c : launch::without_control_characters(line))
    fuzz::require(c == '\t' || std::iscntrl(static_cast<unsigned char>(c)) == 0);
  fuzz::require(line.starts_with(launch::first_columns(line, columns)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  static const net::Fd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  fuzz::Input input(data, byte_count);
  launch::Output output(kRanks, nowhere.get(), nowhere.get());
  launch::Tail tail;
  std::string whole;
  while (!input.is_empty()) {
    const std::uint8_t where = input.byte();
    const std::string piece = input.text(input.byte());
    output.feed(where % kRanks, where >= 128 ? launch::Stream::err : launch::Stream::out, piece);
    if (where == 77) output.say_due(launch::Repeats::Clock::time_point::max());
    tail.add(piece);
    look_at(piece, where);
    whole += piece;
  }
  launch::LineSplitter splitter;
  const auto is_short = [](std::string_view line, bool) {
    fuzz::require(line.size() <= launch::kLongestLine);
  };
  splitter.feed(whole, is_short);
  splitter.finish(is_short);
  for (int rank = 0; rank < kRanks; ++rank) {
    output.finish(rank, launch::Stream::out);
    output.finish(rank, launch::Stream::err);
    (void)output.last_lines(rank);
  }
  output.say("done");
  write_all(output);
  fuzz::require(output.is_written());
  return 0;
}
