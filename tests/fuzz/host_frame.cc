// Whatever a relay or a caller of another host sends: it is decoded, or it is none. What was
// decoded stays within the world, and says the same when it is encoded again.
#include <cstdint>
#include <span>
#include <string_view>

#include "control/hosts/hello.h"
#include "control/hosts/report.h"
#include "control/hosts/view.h"
#include "control/hosts/vote_frame.h"
#include "fuzz/input.h"

namespace {

using namespace tutti::control;
using tutti::fuzz::require;

constexpr int kWorldSize = 64, kHosts = 8;

void take_report(std::string_view bytes) {
  auto report = decode_report(bytes, kWorldSize);
  if (!report) return;
  require(report->rank.value >= 0 && report->rank.value < kWorldSize);
  if (report->line) require(report->line->waiting_for < kWorldSize);
  if (report->wait) {
    for (const WaitPart& part : report->wait->parts)
      for (const tutti::WorldRank awaited : part.awaited) require(awaited.value < kWorldSize);
  }
  require(decode_report(encode(*report, Clock::time_point{}), kWorldSize).has_value());
  View view;
  const auto group = report->group;
  const auto rank = report->rank;
  view.take(*std::move(report));
  (void)view.facts_of(group, rank);
  (void)view.wait_of(rank);
}

void take_answer(std::span<const std::byte> bytes) {
  if (bytes.size() < kAnswerBytes) return;
  const auto answer = decode_answer(bytes.first<kAnswerBytes>());
  if (answer) require(decode_answer(encode(*answer)) == answer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  if (byte_count == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, byte_count - 1);
  switch (data[0] % 4) {
    case 0:
      take_report(bytes);
      break;
    case 1:
      take_answer(std::as_bytes(std::span(bytes)));
      break;
    case 2:
      if (const auto question = decode_question(bytes, kWorldSize))
        require(decode_question(encode(*question), kWorldSize).has_value());
      break;
    default:
      if (const auto frame = decode_vote_frame(bytes, kHosts))
        require(decode_vote_frame(encode(*frame), kHosts) == frame);
  }
  return 0;
}
