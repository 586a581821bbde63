// Between one client and a server: cuts its connection at a given point, once or more often.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "net/poller.h"
#include "net/tcp.h"

namespace tutti::test {

struct Cut {
  std::string_view at;        ///< in what the client sends: the connection that carries it is cut
  bool is_passed_on = false;  ///< the server still gets that
  int times = 1;
  std::chrono::milliseconds held_for{0};  ///< how long the server's side stays open
  std::function<void()> meanwhile = {};   ///< called before the connection is cut
};

class CuttingRelay {
 public:
  CuttingRelay(const net::TcpAddress& at, const net::TcpAddress& server, const Cut& cut)
      : listener_(net::listen_tcp(at)),
        address_(net::TcpAddress::local(listener_.get())),
        server_(server),
        cut_(cut),
        thread_([this] { run(); }) {}
  ~CuttingRelay() {
    end_.signal();
    thread_.join();
  }
  const net::TcpAddress& address() const { return address_; }
  int cuts() const { return cuts_.load(); }

 private:
  struct Pair {
    net::Fd client, server;
  };

  void run() {
    std::list<Pair> pairs;
    std::vector<net::Fd> held;
    Deadline until;  // they are let go
    for (;;) {
      std::vector<net::Watch> watches{{.fd = listener_.get(), .want_read = true}};
      for (const Pair& pair : pairs)
        for (const net::Fd* end : {&pair.client, &pair.server})
          watches.push_back({.fd = end->get(), .want_read = true});
      const net::PollResult result = net::poll_any(watches, until, {.wakeup = &end_});
      if (result == net::PollResult::expired) {
        held.clear();
        until = Deadline();
        continue;
      }
      if (result != net::PollResult::ready) return;
      auto watch = watches.begin() + 1;
      for (auto pair = pairs.begin(); pair != pairs.end(); watch += 2) {
        const bool is_over = (watch[1].readable && !pass(pair->server, pair->client)) ||
                             (watch[0].readable && !pass_upward(*pair, held, until));
        pair = is_over ? pairs.erase(pair) : std::next(pair);
      }
      if (watches[0].readable) {
        net::Fd client = net::accept_tcp_peer(listener_.get()).socket;
        std::string why;
        Deadline deadline = Deadline::after(std::chrono::seconds(1));
        if (auto server = net::try_connect_tcp(server_, deadline, &why)) {
          pairs.push_back({std::move(client), std::move(*server)});
        }
      }
    }
  }
  static bool pass(const net::Fd& from, const net::Fd& to) {
    std::array<std::byte, 65536> bytes;
    std::size_t moved = 0;
    const net::IoResult result = net::receive_some(from.get(), bytes, &moved);
    if (result != net::IoResult::progress) return result == net::IoResult::again;
    return send(to, std::span(bytes).first(moved));
  }
  bool pass_upward(Pair& pair, std::vector<net::Fd>& held, Deadline& until) {
    std::array<std::byte, 65536> bytes;
    std::size_t moved = 0;
    const net::IoResult result = net::receive_some(pair.client.get(), bytes, &moved);
    if (result != net::IoResult::progress) return result == net::IoResult::again;
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), moved);
    const bool is_cut = cuts_ < cut_.times && text.find(cut_.at) != std::string_view::npos;
    if (!is_cut || cut_.is_passed_on) {
      if (!send(pair.server, std::span(bytes).first(moved))) return false;
    }
    if (!is_cut) return true;
    ++cuts_;
    if (cut_.meanwhile) cut_.meanwhile();
    if (cut_.is_passed_on) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    reset(pair.client);
    if (cut_.held_for.count() > 0) {
      held.push_back(std::move(pair.server));
      until = Deadline::at(Deadline::Clock::now() + cut_.held_for);
    } else {
      reset(pair.server);
    }
    return false;
  }
  static bool send(const net::Fd& to, std::span<const std::byte> bytes) try {
    Deadline deadline = Deadline::after(std::chrono::seconds(1));
    return net::send_all(to.get(), bytes, deadline);
  } catch (const Error&) {
    return false;
  }
  static void reset(const net::Fd& socket) { net::reset_at_close(socket.get()); }

  const net::Fd listener_;
  const net::TcpAddress address_, server_;
  const Cut cut_;
  std::atomic<int> cuts_{0};
  net::Wakeup end_;
  std::thread thread_;
};

}  // namespace tutti::test
