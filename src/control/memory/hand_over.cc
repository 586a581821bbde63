#include "control/memory/hand_over.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <optional>
#include <string>

#include "base/rank_list.h"
#include "net/entrance.h"
#include "net/frame.h"
#include "net/process_info.h"
#include "net/system_error.h"
#include "net/unix_socket.h"
#include "store/watch.h"

namespace tutti::control {
namespace {

using Clock = Deadline::Clock;

// Messages of the hand-over (docs/wire.md): four u32, the first says what it is.
constexpr std::uint32_t kHelloMagic =
    0x316f4854;  // "THo1": {magic, group size, rank, 1 if with memory}
constexpr std::uint32_t kBatchMagic = 0x316f4254;  // "TBo1": {magic, first rank, 64 bits: who gave}
constexpr std::size_t kMessageBytes = 16;
constexpr std::size_t kMaxStrangers = 256;  // connections that have not said who they are

using Words = std::array<std::uint32_t, 4>;
using Message = std::array<std::byte, kMessageBytes>;

Message encode(const Words& words) {
  std::string text;
  net::ByteWriter writer(&text);
  for (const std::uint32_t word : words) writer.u32(word);
  Message message;
  std::copy_n(reinterpret_cast<const std::byte*>(text.data()), kMessageBytes, message.begin());
  return message;
}

Words decode(const Message& message) {
  net::ByteReader reader({reinterpret_cast<const char*>(message.data()), message.size()});
  Words words;
  for (std::uint32_t& word : words) word = reader.u32();
  return words;
}

/// The rank as errors name it.
int name_in(std::span<const int> names, std::size_t rank) {
  return names.empty() ? static_cast<int>(rank) : names[rank];
}

bool is_aborted(const net::Interrupt& interrupt) noexcept {
  return interrupt.abort_word != nullptr &&
         interrupt.abort_word->load(std::memory_order_acquire) != 0;
}

Error aborted() {
  return Error(ErrorCode::kAborted, "handing over memory was interrupted by an abort");
}

std::string get_address(Store& store, const std::string& key, Deadline& deadline,
                        const net::Interrupt& interrupt, int host) {
  const auto look = [&] {
    if (is_aborted(interrupt)) throw aborted();
    if (interrupt.look != nullptr && *interrupt.look) (*interrupt.look)();
  };
  const auto late = [&](std::span<const std::size_t>) {
    return Error(ErrorCode::kTimeout,
                 fmt::format("rank {} did not come to the hand-over of memory within {:.3g} s: it "
                             "is stopped, or very slow",
                             host, std::chrono::duration<double>(deadline.budget()).count()),
                 {.culprits = {host}});
  };
  return store::get_watching(store, std::span(&key, 1), deadline, look, late).front();
}

/// The interrupt of a wait for what may be under way. Once all have come a fast rank may have its
/// memories, go on, and fail the group, before the slower ones have theirs: that must not disturb
/// them. So an abort ends such a wait only where nothing has come for a while since.
class UnderWay {
 public:
  explicit UnderWay(const net::Interrupt& interrupt) noexcept : interrupt_(interrupt) {}
  net::Interrupt get() const noexcept { return {.wakeup = interrupt_.wakeup, .look = &look_}; }

 private:
  /// Time is counted in looks: this process may have been stopped meanwhile.
  static constexpr std::chrono::milliseconds kLookAgain{20};
  static constexpr int kLooks = 40;

  void look() {
    if (interrupt_.look != nullptr && *interrupt_.look) (*interrupt_.look)();
    if (!is_aborted(interrupt_)) return;
    const Clock::time_point now = Clock::now();
    if (now < next_look_) return;
    next_look_ = now + kLookAgain;
    if (++looks_ > kLooks) throw aborted();
  }

  const net::Interrupt& interrupt_;
  const std::function<void()> look_ = [this] { look(); };
  Clock::time_point next_look_ = {};
  int looks_ = 0;
};

/// A rank's connection to rank 0 and what it gave.
struct Member {
  net::Fd socket;
  net::Fd memory;
};

/// Rank 0's side: meets the others, then sends everything to everybody.
class HandOverHost {
 public:
  HandOverHost(int group_size, int own_memory, const net::Interrupt& interrupt,
               std::span<const int> names)
      : members_(static_cast<std::size_t>(group_size)), interrupt_(interrupt), names_(names) {
    if (own_memory >= 0) members_[0].memory = duplicate(own_memory);
  }

  void meet(net::Fd listener, Deadline& deadline);
  void send_all(Deadline& deadline);
  void take(const TakeMemory& take) {
    for (std::size_t r = 0; r < members_.size(); ++r) {
      take(static_cast<int>(r), std::move(members_[r].memory));
    }
  }

  static net::Fd duplicate(int fd) {
    net::Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy) throw net::system_error("cannot duplicate the descriptor of a memory", errno);
    return copy;
  }

 private:
  std::vector<int> missing() const;
  /// A new connection; whether it is a rank that has said so already.
  bool take_in(net::Fd socket);
  /// Reads the hello of a stranger.
  enum class Greeting : std::uint8_t { silent, rank, refused };
  Greeting greet(net::Fd* stranger);

  std::vector<Member> members_;
  std::vector<net::Fd> strangers_;
  const net::Interrupt& interrupt_;
  const std::span<const int> names_;
};

std::vector<int> HandOverHost::missing() const {
  std::vector<int> ranks;
  for (std::size_t r = 1; r < members_.size(); ++r) {
    if (!members_[r].socket) ranks.push_back(name_in(names_, r));
  }
  return ranks;
}

bool HandOverHost::take_in(net::Fd socket) {
  const Greeting greeting = greet(&socket);
  if (greeting != Greeting::silent) return greeting == Greeting::rank;
  strangers_.push_back(std::move(socket));
  if (strangers_.size() <= kMaxStrangers) return false;
  greet(&strangers_.front());  // nobody is dropped whose hello lies there unread
  strangers_.erase(strangers_.begin());
  return false;
}

HandOverHost::Greeting HandOverHost::greet(net::Fd* stranger) try {
  // Sixteen bytes in one message of a local socket arrive together; whoever sends fewer is no rank.
  Message message;
  std::vector<net::Fd> memory;
  std::size_t moved = 0;
  const net::IoResult result = net::receive_some(stranger->get(), message, &moved, &memory, 1);
  if (result == net::IoResult::again) return Greeting::silent;
  if (result == net::IoResult::closed || moved != message.size()) return Greeting::refused;
  const auto [magic, size_there, rank, with_memory] = decode(message);
  if (magic != kHelloMagic || size_there != members_.size() || rank == 0 ||
      rank >= members_.size() || members_[rank].socket || memory.size() != with_memory) {
    return Greeting::refused;
  }
  members_[rank].socket = std::move(*stranger);
  if (!memory.empty()) members_[rank].memory = std::move(memory.front());
  return Greeting::rank;
} catch (const Error& error) {
  if (error.code() != ErrorCode::kUnauthenticated) throw;
  return Greeting::refused;  // it sent more descriptors than a rank does
}

void HandOverHost::meet(net::Fd listener, Deadline& deadline) {
  net::Entrance entrance(std::move(listener));
  std::vector<int> awaited = missing();
  while (!awaited.empty()) {
    const Clock::time_point now = Clock::now();
    std::vector<net::Watch> watches{{.fd = entrance.watched(now), .want_read = true}};
    for (const net::Fd& stranger : strangers_) {
      watches.push_back({.fd = stranger.get(), .want_read = true});
    }
    const bool is_last = deadline.left(now) <= entrance.next_look(now) - now;
    Deadline next = is_last ? deadline : Deadline::at(entrance.next_look(now));
    const net::PollResult result = net::poll_any(watches, next, interrupt_);
    if (result == net::PollResult::aborted) throw aborted();
    if (result == net::PollResult::expired && is_last) {
      throw Error(
          ErrorCode::kTimeout,
          fmt::format("no memory from {} {} of {}: they did not come to the hand-over before "
                      "the deadline",
                      awaited.size() == 1 ? "rank" : "ranks", format_ranks(awaited),
                      members_.size()),
          {.culprits = awaited});
    }
    for (std::size_t i = strangers_.size(); i-- > 0;) {
      if (!watches[i + 1].readable) continue;
      if (greet(&strangers_[i]) == Greeting::silent) continue;
      strangers_.erase(strangers_.begin() + static_cast<long>(i));
    }
    if (watches[0].readable) {
      entrance.take_turn(
          [this](net::Fd socket, const net::Peer&) { return take_in(std::move(socket)); });
    }
    awaited = missing();
  }
  strangers_.clear();
}

void HandOverHost::send_all(Deadline& deadline) {
  const UnderWay under_way(interrupt_);
  const std::size_t group_size = members_.size();
  for (std::size_t first = 0; first < group_size; first += net::kMaxDescriptors) {
    const std::size_t batch = std::min(net::kMaxDescriptors, group_size - first);
    std::uint32_t bits[2] = {0, 0};  // which ranks of the batch gave something
    std::vector<int> memories;
    for (std::size_t i = 0; i < batch; ++i) {
      if (!members_[first + i].memory) continue;
      bits[i / 32] |= 1u << (i % 32);
      memories.push_back(members_[first + i].memory.get());
    }
    const Message message =
        encode({kBatchMagic, static_cast<std::uint32_t>(first), bits[0], bits[1]});
    for (std::size_t r = 1; r < group_size; ++r) {
      if (!members_[r].socket) continue;
      const net::Fd& socket = members_[r].socket;
      const bool is_there =
          net::send_all(socket.get(), message, deadline, memories, under_way.get());
      // A rank that died meanwhile is not our affair: its mark tells everybody.
      if (!is_there) members_[r].socket.reset();
    }
  }
}

/// What a guest says where rank 0 has closed its end or its meeting point. Ranks as errors name
/// them.
Error host_ended(int host, const std::string& process, int guest, const std::string& when) {
  return Error(ErrorCode::kPeerLost,
               fmt::format("rank {}{} ended the hand-over of memory before rank {} {}: it failed, "
                           "or refused rank {}",
                           host, process.empty() ? "" : " (" + process + ")", guest, when, guest),
               {.culprits = {host}});
}

/// The other ranks' side.
class HandOverGuest {
 public:
  HandOverGuest(net::Fd socket, int rank, int group_size, const net::Interrupt& interrupt,
                std::span<const int> names)
      : socket_(std::move(socket)),
        rank_(static_cast<std::size_t>(rank)),
        group_size_(static_cast<std::size_t>(group_size)),
        interrupt_(interrupt),
        names_(names) {}

  /// Another user's rank is refused by rank 0 in silence, as everybody else is.
  void check_user() const {
    const net::Peer host = net::peer_of(socket_.get());
    if (host.uid == ::geteuid() || ::geteuid() == 0) return;
    const int own = name_in(names_, rank_);
    throw Error(ErrorCode::kUnauthenticated,
                fmt::format("rank {} runs as user {}, rank {} ({}) on the same host as user {}: "
                            "ranks of one host share memory, so start all as one user",
                            own, ::geteuid(), name_in(names_, 0), net::describe_process(host.pid),
                            host.uid),
                {.culprits = {own}});
  }

  void give(int own_memory, Deadline& deadline) {
    const Message message = encode({kHelloMagic, static_cast<std::uint32_t>(group_size_),
                                    static_cast<std::uint32_t>(rank_), own_memory >= 0 ? 1u : 0u});
    const std::array<int, 1> memory{own_memory};
    const auto given = std::span(memory).first(own_memory >= 0 ? 1 : 0);
    if (!net::send_all(socket_.get(), message, deadline, given, interrupt_))
      throw ended("had come");
  }

  /// Waits for all to come as well: rank 0 sends nothing before.
  void take(const TakeMemory& take, Deadline& deadline) {
    const UnderWay under_way(interrupt_);
    for (std::size_t first = 0; first < group_size_; first += net::kMaxDescriptors) {
      Message message;
      std::vector<net::Fd> memories;
      if (!net::receive_all(socket_.get(), message, deadline, &memories, net::kMaxDescriptors,
                            under_way.get())) {
        throw ended(fmt::format("had the memory of rank {}", name_in(names_, first)));
      }
      const auto [magic, announced, low, high] = decode(message);
      const std::uint64_t bits = low | std::uint64_t{high} << 32;
      if (magic != kBatchMagic || announced != first ||
          memories.size() != static_cast<std::size_t>(std::popcount(bits))) {
        throw Error(ErrorCode::kInternal,
                    fmt::format("rank {} sent a malformed batch of memories", name_in(names_, 0)));
      }
      const std::size_t batch = std::min(net::kMaxDescriptors, group_size_ - first);
      auto next = memories.begin();
      for (std::size_t i = 0; i < batch; ++i) {
        const bool is_given = (bits >> i & 1) != 0 && next != memories.end();
        take(static_cast<int>(first + i), is_given ? std::move(*next++) : net::Fd());
      }
    }
  }

 private:
  Error ended(const std::string& when) const {
    return host_ended(name_in(names_, 0), net::describe_process(net::peer_of(socket_.get()).pid),
                      name_in(names_, rank_), when);
  }

  net::Fd socket_;
  const std::size_t rank_, group_size_;
  const net::Interrupt& interrupt_;
  std::span<const int> names_;
};

}  // namespace

void hand_over(Store& store, std::string_view prefix, int rank, int group_size, int own_memory,
               Deadline deadline, const TakeMemory& take, const net::Interrupt& interrupt,
               std::span<const int> names) {
  deadline.start(Clock::now());
  const std::string key = fmt::format("{}/hand-over", prefix);
  if (rank == 0) {
    HandOverHost host(group_size, own_memory, interrupt, names);
    if (group_size > 1) {
      const std::string address = net::random_address("tutti-memory");
      net::Fd listener = net::listen(address);
      store.set(key, address, store::timeout_of(deadline));
      host.meet(std::move(listener), deadline);
    }
    host.send_all(deadline);
    host.take(take);
    if (group_size > 1) store.erase(key, store::timeout_of(deadline));
    return;
  }
  const std::string address = get_address(store, key, deadline, interrupt, name_in(names, 0));
  std::optional<net::Fd> socket = net::try_connect(address, deadline, interrupt);
  if (!socket) {
    const int own = name_in(names, static_cast<std::size_t>(rank));
    throw host_ended(name_in(names, 0), {}, own, "had come");
  }
  HandOverGuest guest(std::move(*socket), rank, group_size, interrupt, names);
  guest.check_user();
  guest.give(own_memory, deadline);
  guest.take(take, deadline);
}

std::vector<net::Fd> hand_over(Store& store, std::string_view prefix, int rank, int group_size,
                               int own_memory, Deadline deadline, const net::Interrupt& interrupt,
                               std::span<const int> names) {
  std::vector<net::Fd> memories(static_cast<std::size_t>(group_size));
  hand_over(
      store, prefix, rank, group_size, own_memory, deadline,
      [&](int owner, net::Fd memory) {
        memories[static_cast<std::size_t>(owner)] = std::move(memory);
      },
      interrupt, names);
  return memories;
}

}  // namespace tutti::control
