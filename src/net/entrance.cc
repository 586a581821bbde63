#include "net/entrance.h"

#include <utility>

#include "base/cpu_time.h"
#include "net/tcp.h"

namespace tutti::net {
namespace {

using std::chrono::nanoseconds;

// A stranger costs 5 to 10 us. Turns are short for those who are in; together with the rests they
// take some ten thousand a second, so that a full queue passes within half a second.
constexpr nanoseconds kTurn = std::chrono::microseconds(250);
constexpr int kRestPerWork = 7;

}  // namespace

void Entrance::take_turn(const Welcome& welcome) {
  const nanoseconds begin = thread_cpu_time();  // it may be held up for long on a busy machine
  nanoseconds now = begin;
  nanoseconds in_vain(0);
  while (listener_ && now - begin < kTurn) {
    Accepted accepted =
        kind_ == Kind::tcp ? accept_tcp_peer(listener_.get()) : accept(listener_.get(), trusts_);
    if (!accepted.socket && !accepted.refused) break;
    const bool is_ours = accepted.socket && welcome(std::move(accepted.socket), accepted.peer);
    const nanoseconds later = thread_cpu_time();
    if (!is_ours) in_vain += later - now;
    now = later;
  }
  if (in_vain > nanoseconds(0)) rest(kRestPerWork * in_vain);
}

}  // namespace tutti::net
