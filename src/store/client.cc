// The client's side of the store protocol.
//
// Calls of several threads share one connection: each has an id and a *slot* for its answer. One of
// the threads that wait is the *pump*: it polls, sends what is queued, and puts answers into their
// slots; when it has its own, another takes over.
#include "store/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "net/poller.h"
#include "net/process_info.h"
#include "net/shake_hands.h"
#include "net/system_error.h"
#include "store/call_store.h"

namespace tutti::store {
namespace {

using Clock = Deadline::Clock;

/// How long a server may take to say which keys are missing, beyond the deadline.
constexpr std::chrono::milliseconds kCancelTime{250};
constexpr std::size_t kMaxWelcomeBytes = 4096;
/// Of one try over TCP: others are to be made meanwhile, at the local socket or another address.
constexpr std::chrono::seconds kConnectTime{1};
/// A process may listen there that is no store and says nothing.
constexpr std::chrono::seconds kWelcomeTime{5};

/// What moves frames over a connection that is greeted, or about to be.
struct Stream {
  net::SendQueue queue = {};
  net::FrameDecoder decoder{kMaxCallBytes};
  std::size_t tag_bytes = 0;  ///< of a frame

  void protect(const net::FrameKeys& keys) {
    queue.protect(keys.send);
    decoder.protect(keys.receive);
    tag_bytes = 2 * net::kFrameTagBytes;
  }
};

class SocketStore final : public RemoteStore {
 public:
  SocketStore(net::Fd socket, Stream stream, std::string place, bool is_over_tcp)
      : socket_(std::move(socket)),
        place_(std::move(place)),
        is_over_tcp_(is_over_tcp),
        queue_(std::move(stream.queue)),
        decoder_(std::move(stream.decoder)),
        is_protected_(stream.tag_bytes != 0) {}
  bool is_over_tcp() const noexcept override { return is_over_tcp_; }
  bool has_ended() const noexcept override { return has_ended_.load(); }
  bool is_out_of_reach() const noexcept override { return is_out_of_reach_.load(); }

 private:
  struct Slot {
    std::optional<net::Frame> frame;
  };

  Answer perform(const Call& call, Timeout timeout) override;
  /// Pumps, or waits for the pump, until the slot is filled; false: the deadline has passed.
  bool await(std::unique_lock<std::mutex>& lock, const Slot& slot, Deadline& deadline);
  void pump_once(std::unique_lock<std::mutex>& lock, Deadline& deadline);
  void flush();
  void take_frames();
  void lose(std::string_view why);
  void lose(const Error& loss);
  /// We have got a changed frame, or the server has.
  void lose_to_change();
  [[noreturn]] void throw_timeout(const Call& call, const Slot& slot, Timeout timeout) const;

  const net::Fd socket_;
  const std::string place_;  // "store at @x of pid 12 (train)"
  const bool is_over_tcp_;
  net::Wakeup wakeup_;

  std::mutex mutex_;  // guards what follows
  net::Condition changed_;
  net::SendQueue queue_;
  net::FrameDecoder decoder_;
  const bool is_protected_;
  std::map<std::uint64_t, Slot*> slots_;
  std::uint64_t next_id_ = 1;
  bool is_pumped_ = false;
  net::HostWatch host_;
  std::optional<Error> loss_;
  std::atomic<bool> has_ended_{false}, is_out_of_reach_{false};
};

void SocketStore::lose(std::string_view why) {
  if (loss_) return;
  is_out_of_reach_ = is_over_tcp_ && net::has_fallen_silent(socket_.get());
  const std::string text =
      is_out_of_reach_
          ? fmt::format(
                "the {} is out of reach with what was stored in it, and no group can be made "
                "without it: {} and its host do not reach each other (nothing was acknowledged "
                "for 2 s), the network or that host is down. Start all that use it again when "
                "they do",
                place_, net::own_host_name())
          : fmt::format(
                "the {} is gone ({}) with what was stored in it, and no group can be made "
                "without it: the process that served it (of make_tcp_store the one with "
                "is_server, of a job started by hand rank 0, else the launcher) has ended or "
                "closed it, or its host cannot be reached. See why, then start all that use it "
                "again",
                place_, why);
  lose(Error(ErrorCode::kSystem, text, {.op = "store"}));
}

void SocketStore::lose(const Error& loss) {
  if (loss_) return;
  loss_ = loss;
  has_ended_ = true;
  changed_.notify_all();
}

void SocketStore::lose_to_change() {
  lose(changed_error(fmt::format("the connection of {} to the {}", net::own_host_name(), place_)));
}

void SocketStore::flush() {
  if (queue_.flush(socket_.get()) == net::IoResult::closed) lose("it takes no more calls");
}

void SocketStore::take_frames() {
  for (;;) {
    const net::IoResult result = net::receive_into(socket_.get(), &decoder_);
    net::Frame frame;
    auto next = decoder_.next(&frame);
    for (; next == net::FrameDecoder::Next::frame; next = decoder_.next(&frame)) {
      if (is_protected_ && frame.type == kFrameFailed && frame.id == kIdOfChanged) {
        lose_to_change();
      }
      const auto found = slots_.find(frame.id);
      if (found == slots_.end()) continue;  // its caller has given up
      found->second->frame = std::move(frame);
      slots_.erase(found);
    }
    if (next == net::FrameDecoder::Next::malformed && is_protected_ && !loss_) {
      lose_to_change();
      queue_.push(encode_failed(*loss_, kIdOfChanged));  // the server tells the others
      flush();
    }
    if (next == net::FrameDecoder::Next::malformed) lose("it sent a malformed answer");
    if (result == net::IoResult::closed) lose("it closed the connection");
    if (result != net::IoResult::progress || loss_) return;
  }
}

void SocketStore::pump_once(std::unique_lock<std::mutex>& lock, Deadline& deadline) {
  is_pumped_ = true;
  std::array<net::Watch, 1> watch{
      net::Watch{.fd = socket_.get(), .want_read = true, .want_write = !queue_.empty()}};
  Deadline turn = deadline;
  if (is_over_tcp_) {
    const Clock::time_point now = Clock::now();
    turn = Deadline::at(std::min(deadline.end(now), now + net::HostWatch::kPeriod));
  }
  lock.unlock();
  std::optional<Error> problem;
  try {
    net::poll_any(watch, turn, {.wakeup = &wakeup_});
  } catch (const Error& error) {
    problem = error;
  }
  lock.lock();
  is_pumped_ = false;
  if (problem) lose(problem->what());
  wakeup_.drain();
  try {
    if (watch[0].writable && !queue_.empty()) flush();
    if (watch[0].readable) take_frames();
    if (is_over_tcp_ && host_.is_silent(socket_.get(), Clock::now())) lose("its host is silent");
  } catch (const Error& error) {
    lose(error.what());
  }
  changed_.notify_all();
}

bool SocketStore::await(std::unique_lock<std::mutex>& lock, const Slot& slot, Deadline& deadline) {
  while (!slot.frame) {
    if (loss_) throw *loss_;
    if (deadline.expired(Clock::now())) return false;
    if (is_pumped_) {
      changed_.wait(lock, deadline);
    } else {
      pump_once(lock, deadline);
    }
  }
  return true;
}

Answer SocketStore::perform(const Call& call, Timeout timeout) {
  Deadline deadline = Deadline::after(std::min(timeout, kLongest));
  deadline.start(Clock::now());
  Slot slot;
  std::unique_lock lock(mutex_);
  if (loss_) throw *loss_;
  const std::uint64_t id = next_id_++;
  const auto send = [&](const net::Frame& frame) {
    queue_.push(frame);
    flush();
    if (!queue_.empty() && is_pumped_) wakeup_.signal();  // the pump is to look for room, too
  };
  slots_.emplace(id, &slot);
  try {
    send(encode(call, id));
    if (!await(lock, slot, deadline)) {
      if (is_waiting(call.command)) send({kFrameCancel, id, {}});
      Deadline cancelled = Deadline::after(kCancelTime);
      if (!await(lock, slot, cancelled)) throw_timeout(call, slot, timeout);
    }
  } catch (...) {
    slots_.erase(id);
    throw;
  }
  lock.unlock();
  if (slot.frame->type == kFrameFailed) throw decode_failed(*slot.frame);
  if (slot.frame->type == kFrameMissing) throw_timeout(call, slot, timeout);
  std::optional<Answer> answer = decode_answer(*slot.frame);
  if (!answer) throw Error(ErrorCode::kInternal, fmt::format("the {} sent nonsense", place_));
  return std::move(*answer);
}

void SocketStore::throw_timeout(const Call& call, const Slot& slot, Timeout timeout) const {
  const double seconds = std::chrono::duration<double>(timeout).count();
  if (slot.frame) {
    throw missing_error(call.command, decode_missing(*slot.frame), seconds, place_);
  }
  const std::string of_keys = call.keys.empty() ? "" : " of " + format_keys(call.keys);
  throw Error(ErrorCode::kTimeout,
              fmt::format("store {}{}: no answer from the {} for {:.3g} s{}", name_of(call.command),
                          of_keys, place_, seconds,
                          is_waiting(call.command) ? "" : "; the call may still take effect there"),
              {.op = "store"});
}

/// Reads the server's welcome, and the descriptor that comes with its first byte; empty if the
/// server has closed the connection instead.
std::optional<net::Frame> receive_welcome(int socket, Stream& stream, Deadline& deadline,
                                          std::vector<net::Fd>* descriptors) {
  std::array<std::byte, net::kFrameHeaderBytes> header;
  const auto text = [](std::span<const std::byte> bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  if (!net::receive_all(socket, header, deadline, descriptors, 1)) return std::nullopt;
  net::ByteReader reader(text(header));
  const std::uint32_t body_bytes = reader.u32();
  const bool is_welcome = reader.u32() == kFrameWelcome && body_bytes <= kMaxWelcomeBytes;
  constexpr const char* kChanged = "its welcome was changed under way";
  if (!is_welcome) {
    throw Error(ErrorCode::kUnauthenticated,
                stream.tag_bytes != 0 ? kChanged : "this is no store of Tutti");
  }
  std::vector<std::byte> rest(body_bytes + stream.tag_bytes);
  if (!net::receive_all(socket, rest, deadline)) throw net::system_error("no welcome", ECONNRESET);
  stream.decoder.feed(header);
  stream.decoder.feed(rest);
  net::Frame frame;
  if (stream.decoder.next(&frame) != net::FrameDecoder::Next::frame) {
    throw Error(ErrorCode::kUnauthenticated, kChanged);
  }
  return frame;
}

/// What the server refuses us with; empty: we are welcome, and `*server` is its name. Throws for
/// anything else.
std::optional<Error> refusal_in(const net::Frame& welcome, std::string* server) {
  net::ByteReader reader(welcome.body);
  const std::uint32_t magic = reader.u32();
  const std::uint32_t version = reader.u32();
  const std::uint32_t code = reader.u32();
  reader.u32();  // flags
  std::string text(reader.bytes(kMaxWelcomeBytes));
  if (!reader.at_end() || magic != kGreetingMagic) {
    throw Error(ErrorCode::kUnauthenticated, "this is no store of Tutti");
  }
  if (version != kProtocolVersion) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("it speaks version {} of the store's protocol, we speak {}: use one "
                            "version of Tutti for the whole job",
                            version, kProtocolVersion));
  }
  if (code == 0) {
    *server = std::move(text);
    return std::nullopt;
  }
  if (code > kErrorCodeCount || text.empty()) {
    throw Error(ErrorCode::kInternal, "its refusal is malformed");
  }
  return Error(static_cast<ErrorCode>(code - 1), text);
}

/// Says hello; empty if the server has dropped the connection before it knew whose it was.
std::optional<Connected> greet(net::Fd socket, Stream stream, net::Peer server,
                               const std::string& place, const Hello& hello, Deadline& deadline) {
  stream.queue.push(encode(hello));
  std::vector<net::Fd> descriptors;
  std::optional<Error> refusal;
  Connected connected;
  try {
    // At once and whole, since nothing else is in the socket: from then on nobody drops us unheard.
    if (stream.queue.flush(socket.get()) != net::IoResult::progress) return std::nullopt;
    const auto welcome = receive_welcome(socket.get(), stream, deadline, &descriptors);
    if (!welcome) return std::nullopt;
    refusal = refusal_in(*welcome, &connected.server_name);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", place, error.what()));
  }
  if (refusal) throw *refusal;
  connected.server = std::move(server);
  if (!descriptors.empty()) connected.descriptor = std::move(descriptors[0]);
  const auto made = std::make_shared<SocketStore>(std::move(socket), std::move(stream), place,
                                                  !connected.server.address.empty());
  connected.remote = made.get();
  connected.store = made;
  return connected;
}

}  // namespace

std::optional<Connected> try_connect_store(std::string_view address, const Hello& hello,
                                           Deadline deadline) {
  deadline.start(Clock::now());
  std::chrono::nanoseconds backoff = std::chrono::milliseconds(1);
  for (bool is_dropped = false;;) {
    std::optional<net::Fd> socket = net::try_connect(address, deadline);
    if (!socket) return std::nullopt;
    const net::Peer server = net::peer_of(socket->get());
    const std::string place = fmt::format("store at {} of {}", address, net::describe(server));
    try {
      if (auto connected = greet(std::move(*socket), {}, server, place, hello, deadline)) {
        return connected;
      }
      is_dropped = true;  // as the oldest of very many that are silent, or because the server ends
    } catch (const Error& error) {
      if (!is_dropped || error.code() != ErrorCode::kTimeout) throw;
    }
    if (net::pause(backoff, deadline) == net::PollResult::expired) {
      throw Error(ErrorCode::kTimeout,
                  fmt::format("the {} closed every connection before it answered, until the "
                              "deadline: it is no store of Tutti, or cannot take any more",
                              place));
    }
    backoff = std::min<std::chrono::nanoseconds>(backoff * 2, std::chrono::milliseconds(20));
  }
}

namespace {

Deadline within(Deadline& deadline, std::chrono::nanoseconds longest) {
  const Clock::time_point now = Clock::now();
  return Deadline::at(now + std::min(deadline.left(now), longest));
}

/// "rank 1 on node-2".
std::string own_name(const Hello& hello) {
  const std::string host = net::own_host_name();
  return hello.rank < 0 ? fmt::format("this process on {}", host)
                        : fmt::format("rank {} on {}", hello.rank, host);
}

/// A connection whose ends have proved who they are.
struct Proved {
  net::Fd socket;
  Stream stream = {};
  std::string place;
};

std::optional<Proved> prove_at(const net::TcpAddress& address, const Hello& hello,
                               const net::Security& security, Deadline& deadline,
                               std::string* why) {
  Deadline connecting = within(deadline, kConnectTime);
  std::optional<net::Fd> socket = net::try_connect_tcp(address, connecting, why);
  if (!socket) return std::nullopt;
  net::watch_for_lost_host(socket->get());
  Proved proved{.socket = std::move(*socket), .place = fmt::format("store at {}", address.text())};
  Deadline proving = within(deadline, kWelcomeTime);
  *why = "who listens there closes the connection";
  net::Handshake handshake = net::Handshake::calling(
      {.purpose = net::Purpose::store, .from = hello.rank}, security.level, key_of_store(security));
  if (!net::shake_hands(handshake, proved.socket.get(), proving)) return std::nullopt;
  if (handshake.outcome() != net::Handshake::Outcome::proved) {
    throw net::failure_of(handshake, security.level, own_name(hello), "the " + proved.place,
                          security.secret_file);
  }
  if (security.has_frame_tags()) proved.stream.protect(handshake.frame_keys());
  return proved;
}

std::optional<Connected> greet_at(const net::TcpAddress& address, Proved proved, const Hello& hello,
                                  Deadline deadline) {
  return greet(std::move(proved.socket), std::move(proved.stream),
               {0, static_cast<uid_t>(-1), address.text()}, proved.place, hello, deadline);
}

std::optional<Connected> try_one(const net::TcpAddress& address, const Hello& hello,
                                 const net::Security& security, Deadline& deadline,
                                 std::string* why) {
  std::optional<Proved> proved = prove_at(address, hello, security, deadline, why);
  if (!proved) return std::nullopt;
  return greet_at(address, std::move(*proved), hello, within(deadline, kWelcomeTime));
}

}  // namespace

std::optional<Connected> try_connect_tcp_store(std::span<const net::TcpAddress> addresses,
                                               const Hello& hello, const net::Security& security,
                                               Deadline deadline, std::string* why) {
  deadline.start(Clock::now());
  std::string all;
  for (const net::TcpAddress& address : addresses) {
    try {
      if (auto connected = try_one(address, hello, security, deadline, why)) return connected;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kSystem && error.code() != ErrorCode::kTimeout) throw;
      *why =
          error.code() == ErrorCode::kTimeout ? "who listens there does not answer" : error.what();
    }
    all += fmt::format("{}{}: {}", all.empty() ? "" : ", ", address.text(), *why);
  }
  *why = std::move(all);
  return std::nullopt;
}

net::Holding look_at_own(const net::TcpAddress& address, const net::Security& security,
                         Deadline deadline) try {
  // No rank, and of no job: a meeting refuses that, and a program's store does not count it.
  const Hello hello{.job = hash_text(random_name())};
  Deadline end = within(deadline, kConnectTime);
  std::string why;
  std::optional<Proved> proved = prove_at(address, hello, security, end, &why);
  if (!proved) return net::Holding::unknown;
  try {
    const bool is_welcome = greet_at(address, std::move(*proved), hello, end).has_value();
    return is_welcome ? net::Holding::for_good : net::Holding::unknown;
  } catch (const Error& refusal) {
    const bool is_meeting = refusal.code() == ErrorCode::kInvalidArgument;
    return is_meeting ? net::Holding::for_a_while : net::Holding::unknown;
  }
} catch (const Error&) {  // another program's protocol, level or secret
  return net::Holding::unknown;
}

void RemoteStore::leave_will(const Will& will, Timeout timeout) {
  const Call call = call_of(will);
  check_limits(call);
  perform(call, timeout);
}

void RemoteStore::take_back_will(Timeout timeout) { perform({Command::will}, timeout); }

Connected connect_store(std::string_view address, const Hello& hello, Deadline deadline) {
  std::optional<Connected> connected = try_connect_store(address, hello, deadline);
  if (!connected) {
    throw net::system_error(fmt::format("no store is served at {}", address), ECONNREFUSED);
  }
  return std::move(*connected);
}

}  // namespace tutti::store
