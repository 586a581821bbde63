// The kinds of store that the tests run over, and how a raw client speaks with a server.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/port_holder.h"
#include "net/unix_socket.h"
#include "ranks.h"
#include "store/client.h"
#include "store/server.h"
#include "tutti/store.h"

namespace tutti::test {

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

/// What a client says first.
inline std::string hello_bytes() {
  std::string bytes;
  net::append_frame(&bytes, store::encode(store::Hello{}));
  return bytes;
}

/// Whether the server closes the connection, reading and dropping what it sends before.
inline bool is_closed_by_server(const net::Fd& socket) {
  Deadline deadline = soon();
  std::array<std::byte, 4096> chunk;
  for (;;) {
    std::size_t moved = 0;
    const net::IoResult result = net::receive_some(socket.get(), chunk, &moved);
    if (result == net::IoResult::closed) return true;
    if (result == net::IoResult::again &&
        net::poll_readable(socket.get(), deadline) != net::PollResult::ready) {
      return false;
    }
  }
}

/// One store seen by several ranks: `at(i)` is rank i's view of it.
class StoreUnderTest {
 public:
  virtual ~StoreUnderTest() = default;
  virtual std::shared_ptr<Store> at(int rank) = 0;
};

class MemoryUnderTest final : public StoreUnderTest {
 public:
  std::shared_ptr<Store> at(int) override { return store_; }

 private:
  std::shared_ptr<Store> store_ = make_memory_store();
};

/// Every rank has a connection of its own.
class ServerUnderTest final : public StoreUnderTest {
 public:
  ServerUnderTest() : address_(net::random_address("tutti-test")) {
    server_.emplace(store::ServerOptions{.listener = net::listen(address_)});
  }
  std::shared_ptr<Store> at(int rank) override {
    auto& client = clients_.at(static_cast<std::size_t>(rank));
    if (!client) {
      client = store::connect_store(address_, {}, Deadline::after(std::chrono::seconds(60))).store;
    }
    return client;
  }
  const std::string& address() const { return address_; }
  store::Server& server() { return *server_; }
  void stop() { server_.reset(); }

 private:
  std::string address_;
  std::optional<store::Server> server_;
  std::vector<std::shared_ptr<Store>> clients_{64};
};

/// All ranks share one connection.
class SharedConnectionUnderTest final : public StoreUnderTest {
 public:
  std::shared_ptr<Store> at(int) override { return base_.at(0); }

 private:
  ServerUnderTest base_;
};

/// The public one: rank 0 serves it, every rank has a connection of its own.
class TcpUnderTest final : public StoreUnderTest {
 public:
  std::shared_ptr<Store> at(int rank) override {
    auto& store = stores_.at(static_cast<std::size_t>(rank));
    if (!store) {
      store = make_tcp_store({.host = "127.0.0.1", .port = held_.port, .is_server = rank == 0});
    }
    return store;
  }

 private:
  const net::HeldPort held_ = net::hold_port(0);
  std::vector<std::shared_ptr<Store>> stores_{64};
};

/// Every rank has the file open by itself.
class FileUnderTest final : public StoreUnderTest {
 public:
  FileUnderTest() {
    const int fd = ::mkstemp(path_.data());
    if (fd >= 0) ::close(fd);
  }
  ~FileUnderTest() override { ::unlink(path_.c_str()); }
  std::shared_ptr<Store> at(int rank) override {
    auto& store = stores_.at(static_cast<std::size_t>(rank));
    if (!store) store = make_file_store(path_);
    return store;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/tutti-store-XXXXXX";
  std::vector<std::shared_ptr<Store>> stores_{64};
};

template <class Base>
class PrefixUnderTest final : public StoreUnderTest {
 public:
  std::shared_ptr<Store> at(int rank) override {
    return make_prefix_store(base_.at(rank), "below");
  }

 private:
  Base base_;
};

}  // namespace tutti::test
