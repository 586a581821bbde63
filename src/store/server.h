// A store served to other processes over an abstract unix socket, over TCP, or both.
//
// One thread polls, greets and serves. Whoever connects to the local socket must be the same user
// or root; who connects over TCP must prove in a handshake that it knows the key, which at the
// lower levels everybody does. Both must say hello within two seconds, and are then *admitted* or
// refused by a hook; the welcome may carry a descriptor to a local client.
// The server can stop listening and keep its connections, and can be told to fail everybody with
// one reason.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "net/fd.h"
#include "net/unix_socket.h"
#include "store/session.h"

namespace tutti::store {

inline constexpr std::size_t kMaxUngreeted = 256;  ///< then the oldest is dropped
inline constexpr std::chrono::seconds kGreetingTime{2};

/// Says why a client is refused, or nothing. Runs in the server's thread.
using Admit = std::function<std::optional<Error>(const Hello&, const net::Peer&)>;

struct ServerOptions {
  net::Fd listener = {};                ///< may be empty: then only adopt() brings clients
  net::Fd tcp_listener = {};            ///< may be empty
  net::Security security = {};          ///< of those who come over TCP
  net::Trust trusts = net::is_trusted;  ///< of clients at `listener`: the others are not heard
  Admit admit = {};         ///< empty: everybody who is trusted, and who has come over TCP
  int descriptor = -1;      ///< handed to whoever is admitted at `listener`; borrowed
  std::size_t awaited = 0;  ///< so many clients are counted as they come; they say Hello::world
};

/// Threads   All calls may be made from any thread.
class Server {
 public:
  explicit Server(ServerOptions options);
  /// Sends what has been answered (at most 1 s), then closes everything.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Serves a connection that was accepted elsewhere; its hello is still to come.
  void adopt(net::Fd connection, const net::Peer& peer);
  /// Returns once nobody can connect any more and the addresses are free.
  void stop_listening();
  /// The same, and of those who have come over TCP only they stay who have left a will for one of
  /// these values of their keys. A will belongs to the first who leaves it.
  void stop_listening(std::map<std::string, std::string> claims);
  /// Those who wait, and all calls from now on, fail with `reason`; connections stay open.
  void fail(const Error& reason);
  /// Admitted clients that are connected.
  std::size_t client_count() const;
  /// Of those awaited: who has been admitted, and may have gone since.
  std::size_t came_count() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace tutti::store
