#include "store/server.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "net/entrance.h"
#include "net/poller.h"
#include "net/shake_hands.h"
#include "net/system_error.h"
#include "net/tcp.h"

namespace tutti::store {
namespace {

using Clock = Deadline::Clock;

constexpr int kReadsPerTurn = 16;  // of 64 KiB, so that one client does not starve the others
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kLastWords{1};
/// Turns in a row that failed, with a pause after each: those who wait for us are to hear of it.
constexpr int kMostLacks = 40;
constexpr std::chrono::milliseconds kLackPause{50};
/// Of those who were turned away; strangers must not fill a log.
constexpr int kMostLines = 8;

struct Connection {
  Connection(net::Fd socket_in, const net::Peer& peer_in, Hall& hall)
      : socket(std::move(socket_in)), peer(peer_in), guest(hall) {}
  ~Connection() {
    if (guest.is_changed()) tell_of_change();
    if (!is_local() && net::has_fallen_silent(socket.get())) guest.has_fallen_silent();
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  /// To the other end as far as the socket takes it.
  void tell_of_change() noexcept try {
    const int rank = guest.hello() ? guest.hello()->rank : -1;
    const std::string who = describe(peer);
    const std::string whose =
        rank < 0 ? fmt::format("the connection of {} to the store", who)
                 : fmt::format("the connection of rank {} ({}) to the store", rank, who);
    log(LogLevel::error, changed_error(whose).what());
    guest.queue().flush(socket.get());
  } catch (const std::exception&) {  // no memory: the other end finds its connection closed
  }
  bool is_local() const noexcept { return peer.address.empty(); }
  bool is_watched() const noexcept { return guest.will() && !is_local(); }
  /// Has said nothing that a client says.
  bool is_silent() const noexcept {
    return !guest.hello() && !(handshake && handshake->has_claim());
  }
  net::Fd socket;
  net::Peer peer;
  Guest guest;
  std::optional<net::Handshake> handshake = {};  ///< over TCP: before anything else
  net::HostWatch host = {};                      ///< over TCP, while others rely on a will
  Clock::time_point greet_before = Clock::now() + kGreetingTime;
};

}  // namespace

class Server::Loop {
 public:
  explicit Loop(ServerOptions options) try
      : options_(std::move(options)), thread_([this] { run(); }) {
  } catch (const std::system_error& failure) {
    throw net::no_thread_error("cannot start the thread that serves the store",
                               failure.code().value());
  }

  ~Loop() {
    is_stopping_.store(true);
    wakeup_.signal();
    thread_.join();
  }

  void adopt(net::Fd connection, const net::Peer& peer) {
    const std::lock_guard lock(mutex_);
    adopted_.emplace_back(std::move(connection), peer);
    wakeup_.signal();
  }

  void stop_listening(std::optional<std::map<std::string, std::string>> claims) {
    std::unique_lock lock(mutex_);
    is_listener_unwanted_ = true;
    claims_ = std::move(claims);
    wakeup_.signal();
    Deadline never;
    while (!is_listener_closed_) changed_.wait(lock, never);
  }

  void fail(const Error& reason) {
    const std::lock_guard lock(mutex_);
    failure_ = reason;
    wakeup_.signal();
  }

  std::size_t client_count() const { return client_count_.load(); }
  std::size_t came_count() const { return came_count_.load(); }

 private:
  using Connections = std::list<Connection>;

  void run() noexcept;
  void turn(Deadline deadline);
  /// A turn has failed, the `in_a_row`th. Allocates nothing: memory may be what lacks.
  void endure(const std::exception& lack, int in_a_row);
  void give_up();
  void take_orders();
  /// Once nobody comes any more: who has not said hello, and who is none of those expected.
  void turn_out_strangers();
  /// A new connection; whether it was welcomed already.
  bool take_in(net::Fd socket, const net::Peer& peer);
  /// Drops the one that has been silent longest when they are too many.
  void limit_ungreeted();
  /// Nobody is dropped whose hello lies there unread.
  bool is_greeted_at_last(Connection& connection);
  /// Whether those who have left a will are to be looked at: their hosts may have fallen silent.
  bool is_time_to_look(Clock::time_point now);
  /// Serves one connection; false: close it.
  bool serve(Connection& connection, bool readable);
  bool read_from(Connection& connection);
  bool has_proved(Connection& connection);
  void tell_of(const Connection& connection) noexcept;
  net::Handshake begin_handshake() const;
  bool greet(Connection& connection);
  void count_in(const Hello& hello);
  void say_last_words();

  ServerOptions options_;
  net::Entrance entrance_{std::move(options_.listener), net::Entrance::Kind::local,
                          options_.trusts};
  net::Entrance tcp_entrance_{std::move(options_.tcp_listener), net::Entrance::Kind::tcp};
  Hall hall_;
  Connections connections_;
  std::atomic<std::size_t> client_count_{0}, came_count_{0};
  std::set<std::uint64_t> came_;  // by Hello::world; no more than are awaited
  int lines_ = 0;
  bool has_said_lack_ = false;
  Clock::time_point next_look_ = {};  // at the hosts of guests
  std::atomic<bool> is_stopping_{false};
  net::Wakeup wakeup_;
  const std::string name_ = random_name();  // by which a client that comes again knows us

  std::mutex mutex_;  // guards what follows
  net::Condition changed_;
  std::deque<std::pair<net::Fd, net::Peer>> adopted_;
  std::optional<Error> failure_;
  bool is_listener_unwanted_ = false;
  std::optional<std::map<std::string, std::string>> claims_;
  bool is_listener_closed_ = false;
  bool has_given_up_ = false;

  std::thread thread_;  // last: it uses all of the above
};

void Server::Loop::run() noexcept {
  sigset_t all;  // signals are the program's: its own threads handle them
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "tutti-store");
  for (int lacks = 0; !is_stopping_.load();) {
    try {
      turn(Deadline());
      lacks = 0;
    } catch (const std::exception& lack) {
      endure(lack, ++lacks);
    }
  }
  try {
    say_last_words();
  } catch (const std::exception&) {  // nobody is left to hear of it
  }
  connections_.clear();
}

void Server::Loop::endure(const std::exception& lack, int in_a_row) {
  const auto say = [&](const char* what) {
    std::array<char, 400> text;
    const auto end = fmt::format_to_n(text.data(), text.size(), "the store where ranks meet {}: {}",
                                      what, lack.what());
    log(LogLevel::error, {text.data(), end.out});
  };
  // Out of memory or descriptors: whoever asked has lost their connection, the others go on.
  if (!std::exchange(has_said_lack_, true)) {
    say("lacks something, and turns them away until it has it");
  }
  for (net::Entrance* entrance : {&entrance_, &tcp_entrance_}) entrance->rest(kAcceptPause);
  if (in_a_row == kMostLacks) {
    say("can serve nobody and has closed all connections; raise this process's limits (ulimit -a), "
        "then start the job again");
    give_up();
  }
  if (in_a_row == 1) return;  // the others need no more than there is, mostly
  Deadline never;
  try {
    net::pause(kLackPause, never, {.wakeup = &wakeup_});
  } catch (const std::exception&) {  // poll itself lacks something
  }
}

/// The ranks find their connections closed, and nobody comes any more.
void Server::Loop::give_up() {
  hall_.close();
  entrance_.close();
  tcp_entrance_.close();
  connections_.clear();
  {
    const std::lock_guard lock(mutex_);
    adopted_.clear();
    has_given_up_ = true;
  }
  client_count_.store(hall_.guest_count());
}

void Server::Loop::take_orders() {
  wakeup_.drain();
  const std::lock_guard lock(mutex_);
  if (has_given_up_) adopted_.clear();
  for (auto& [socket, peer] : adopted_) connections_.emplace_back(std::move(socket), peer, hall_);
  adopted_.clear();
  if (is_listener_unwanted_ && !is_listener_closed_) {
    entrance_.close();
    tcp_entrance_.close();
    turn_out_strangers();
    is_listener_closed_ = true;
    changed_.notify_all();
  }
  if (failure_) hall_.fail(*failure_);
}

void Server::Loop::turn_out_strangers() {
  const auto is_expected = [this](const std::optional<Will>& will) {
    if (!claims_ || !will) return !claims_;
    const auto claim = claims_->find(will->key);
    return claim != claims_->end() && claim->second == will->value;
  };
  int lines = 0;
  connections_.remove_if([&](const Connection& connection) {
    if (connection.is_local()) return false;
    if (!connection.guest.hello()) return true;
    if (is_expected(connection.guest.will())) return false;
    if (lines++ < kMostLines) {
      log(LogLevel::warn, "the store of this rank has turned out " + describe(connection.peer) +
                              ", which is no rank of the world that is complete now");
    }
    return true;
  });
}

void Server::Loop::turn(Deadline deadline) {
  take_orders();
  if (is_stopping_.load()) return;  // its signal may be among those just drained
  const Clock::time_point now = Clock::now();
  Clock::time_point next =
      now + std::min<std::chrono::nanoseconds>(deadline.left(now), std::chrono::hours(1));
  next = std::min({next, entrance_.next_look(now), tcp_entrance_.next_look(now)});
  std::vector<net::Watch> watches;
  watches.push_back({.fd = entrance_.watched(now), .want_read = true});
  watches.push_back({.fd = tcp_entrance_.watched(now), .want_read = true});
  for (Connection& connection : connections_) {
    watches.push_back({.fd = connection.socket.get(),
                       .want_read = connection.guest.wants_more(),
                       .want_write = connection.guest.has_unsent()});
    if (!connection.guest.hello()) next = std::min(next, connection.greet_before);
    if (connection.is_watched()) next = std::min(next, std::max(now, next_look_));
  }
  Deadline end = Deadline::at(next);
  net::poll_any(watches, end, {.wakeup = &wakeup_});
  const Clock::time_point later = Clock::now();
  const bool looks = is_time_to_look(later);
  auto watch = watches.begin() + 2;
  for (auto connection = connections_.begin(); connection != connections_.end(); ++watch) {
    const bool is_late = !connection->guest.hello() && later >= connection->greet_before;
    const bool is_silent = looks && connection->is_watched() &&
                           connection->host.is_silent(connection->socket.get(), later);
    const bool keep = !is_silent && (is_late ? is_greeted_at_last(*connection)
                                             : serve(*connection, watch->readable));
    connection = keep ? std::next(connection) : connections_.erase(connection);
  }
  const auto welcome = [this](net::Fd socket, const net::Peer& peer) {
    return take_in(std::move(socket), peer);
  };
  if (watches[0].readable) entrance_.take_turn(welcome);
  if (watches[1].readable) tcp_entrance_.take_turn(welcome);
  client_count_.store(hall_.guest_count());
}

bool Server::Loop::is_time_to_look(Clock::time_point now) {
  if (now < next_look_) return false;
  next_look_ = now + net::HostWatch::kPeriod;
  return true;
}

bool Server::Loop::serve(Connection& connection, bool readable) try {
  Guest& guest = connection.guest;
  if (readable && !read_from(connection)) return false;
  // Others' calls may have put answers into this queue, too.
  if (!guest.has_unsent()) return true;
  const net::IoResult result = guest.queue().flush(connection.socket.get());
  if (result == net::IoResult::closed || guest.is_flooded()) return false;
  return result == net::IoResult::again || guest.receive({});
} catch (const std::exception&) {
  return false;  // it sent descriptors, or more than there is memory for
}

net::Handshake Server::Loop::begin_handshake() const {
  const auto key_for = [key = key_of_store(options_.security)](const net::Claim& claim) {
    return claim.purpose == net::Purpose::store ? std::optional(key) : std::nullopt;
  };
  return net::Handshake::called(options_.security.level, key_for);
}

/// Once the handshake is over.
bool Server::Loop::has_proved(Connection& connection) {
  const net::Handshake& handshake = *connection.handshake;
  if (handshake.outcome() != net::Handshake::Outcome::proved) {
    tell_of(connection);
    return false;
  }
  if (options_.security.has_frame_tags()) connection.guest.protect(handshake.frame_keys());
  return true;
}

/// Who may be a rank with another secret, level or version than the others, which wait for it.
void Server::Loop::tell_of(const Connection& connection) noexcept try {
  using Outcome = net::Handshake::Outcome;
  const net::Handshake& handshake = *connection.handshake;
  const bool is_stranger =
      handshake.outcome() == Outcome::strange || handshake.outcome() == Outcome::refused;
  if (is_stranger || lines_ == kMostLines) return;
  const int rank = handshake.claim().from;
  const std::string who = describe(connection.peer) +
                          (rank >= 0 ? ", as it says rank " + std::to_string(rank) + "," : "");
  const Error why = net::failure_of(handshake, options_.security.level, "the store", who,
                                    options_.security.secret_file);
  if (rank >= 0) hall_.put(turned_away_key(rank), why.what());
  log(LogLevel::warn,
      "the store of this rank has turned a client away: " + std::string(why.what()) +
          (++lines_ == kMostLines ? " (there are no more lines of this kind)" : ""));
} catch (const std::exception&) {  // the store is full
}

bool Server::Loop::read_from(Connection& connection) {
  if (connection.handshake &&
      connection.handshake->outcome() == net::Handshake::Outcome::going_on) {
    const int error_number = net::advance(*connection.handshake, connection.socket.get());
    if (error_number == EAGAIN) return true;
    if (error_number != 0 || !has_proved(connection)) return false;
  }
  // Not on the stack: by `ulimit -s 64` a thread has no more than this.
  const auto room = std::make_unique_for_overwrite<std::byte[]>(kReadBytes);
  const std::span chunk(room.get(), kReadBytes);
  for (int reads = 0; reads < kReadsPerTurn && connection.guest.wants_more(); ++reads) {
    std::size_t moved = 0;
    switch (net::receive_some(connection.socket.get(), chunk, &moved)) {
      case net::IoResult::again:
        return true;
      case net::IoResult::closed:
        return false;
      case net::IoResult::progress:
        break;
    }
    if (!connection.guest.receive(chunk.first(moved))) return false;
    if (connection.guest.hello() && !connection.guest.is_welcome()) {
      if (!greet(connection) || !connection.guest.receive({})) return false;
    }
    if (moved < chunk.size()) return true;
  }
  return true;
}

bool Server::Loop::greet(Connection& connection) {
  std::optional<Error> refusal = check_version(*connection.guest.hello());
  if (connection.handshake &&
      connection.handshake->claim().from != connection.guest.hello()->rank) {
    return false;  // it has proved to be another one
  }
  if (!refusal && options_.admit) {
    refusal = options_.admit(*connection.guest.hello(), connection.peer);
  }
  const bool with_descriptor = !refusal && options_.descriptor >= 0 && connection.is_local();
  net::SendQueue& queue = connection.guest.queue();
  queue.push(encode_welcome(refusal, with_descriptor, name_));
  // The queue was empty and the socket's buffer, too: a welcome always fits.
  const std::array<int, 1> descriptor{options_.descriptor};
  const net::IoResult result =
      queue.flush(connection.socket.get(), std::span(descriptor).first(with_descriptor ? 1 : 0));
  if (result != net::IoResult::progress || refusal) return false;
  connection.guest.welcome();
  count_in(*connection.guest.hello());
  return true;
}

void Server::Loop::count_in(const Hello& hello) {
  if (hello.world == 0 || came_.size() == options_.awaited) return;
  came_.insert(hello.world);
  came_count_.store(came_.size());
}

bool Server::Loop::is_greeted_at_last(Connection& connection) {
  return serve(connection, true) && connection.guest.hello();
}

bool Server::Loop::take_in(net::Fd socket, const net::Peer& peer) {
  std::optional<net::Handshake> handshake = begin_handshake();  // without one nobody is listed
  Connection& connection = connections_.emplace_back(std::move(socket), peer, hall_);
  if (!connection.is_local()) connection.handshake = std::move(handshake);
  if (!serve(connection, true)) {  // what a client says first is here by now, mostly
    connections_.pop_back();
    return false;
  }
  if (connection.guest.hello()) return true;
  limit_ungreeted();
  return false;
}

void Server::Loop::limit_ungreeted() {
  const auto is_ungreeted = [](const Connection& c) { return !c.guest.hello(); };
  if (std::count_if(connections_.begin(), connections_.end(), is_ungreeted) <=
      static_cast<long>(kMaxUngreeted)) {
    return;
  }
  // Who has begun a handshake has to wait for our answer: the others go first.
  auto oldest = std::find_if(connections_.begin(), connections_.end(),
                             [](const Connection& c) { return c.is_silent(); });
  if (oldest == connections_.end()) {
    oldest = std::find_if(connections_.begin(), connections_.end(), is_ungreeted);
  }
  if (!is_greeted_at_last(*oldest)) connections_.erase(oldest);
}

void Server::Loop::say_last_words() {
  take_orders();
  hall_.close();
  entrance_.close();
  tcp_entrance_.close();
  Deadline end = Deadline::after(kLastWords);
  for (;;) {
    std::vector<net::Watch> watches;
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      const net::IoResult result = connection->guest.queue().flush(connection->socket.get());
      if (result != net::IoResult::again) {
        connection = connections_.erase(connection);
        continue;
      }
      watches.push_back({.fd = connection->socket.get(), .want_write = true});
      ++connection;
    }
    if (watches.empty() || net::poll_any(watches, end) != net::PollResult::ready) return;
    if (end.expired(Deadline::Clock::now())) return;  // sockets with room that take nothing
  }
}

Server::Server(ServerOptions options) : loop_(std::make_unique<Loop>(std::move(options))) {}
Server::~Server() = default;
void Server::adopt(net::Fd connection, const net::Peer& peer) {
  loop_->adopt(std::move(connection), peer);
}
void Server::stop_listening() { loop_->stop_listening(std::nullopt); }
void Server::stop_listening(std::map<std::string, std::string> claims) {
  loop_->stop_listening(std::move(claims));
}
void Server::fail(const Error& reason) { loop_->fail(reason); }
std::size_t Server::client_count() const { return loop_->client_count(); }
std::size_t Server::came_count() const { return loop_->came_count(); }

}  // namespace tutti::store
