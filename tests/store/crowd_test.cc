// The server among very many who connect: some are clients, the others want nothing or harm.
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "ranks.h"
#include "stores.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using test::hello_bytes;
using test::is_closed_by_server;
using test::soon;

void say(const net::Fd& socket, const std::string& words) {
  Deadline deadline = soon();
  net::send_all(socket.get(), std::as_bytes(std::span(words)), deadline);
}

std::vector<net::Fd> connect_many(const std::string& address, int count,
                                  const std::string& first_words = {}) {
  std::vector<net::Fd> sockets;
  for (int i = 0; i < count; ++i) {
    Deadline deadline = soon();
    sockets.push_back(net::connect(address, deadline));
    if (!first_words.empty()) say(sockets.back(), first_words);
  }
  return sockets;
}

/// Whether the server's first answer comes on `socket`.
bool is_answered(const net::Fd& socket) {
  Deadline deadline = soon();
  std::array<std::byte, 1> byte;
  return net::receive_all(socket.get(), byte, deadline);
}

/// A latch that can be waited for.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 20s, [&] { return is_open_; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

TEST(StoreCrowd, AHelloThatLiesUnreadBeforeALongQueueIsServed) {
  const std::string address = net::random_address("tutti-test");
  net::Fd listener = net::listen(address);
  const std::vector<net::Fd> clients = connect_many(address, 1, hello_bytes());
  const std::vector<net::Fd> silent =
      connect_many(address, 2 * static_cast<int>(store::kMaxUngreeted));
  const store::Server server({.listener = std::move(listener)});
  EXPECT_TRUE(is_answered(clients[0]));
}

TEST(StoreCrowd, AHelloThatLiesUnreadWhenItsTimeIsOverIsServed) {
  const std::string address = net::random_address("tutti-test");
  Gate is_held_up, goes_on;
  const auto admit = [&](const store::Hello& hello, const net::Peer&) {
    if (hello.rank == 7) {
      is_held_up.open();
      goes_on.pass();
    }
    return std::optional<Error>();
  };
  const store::Server server({.listener = net::listen(address), .admit = admit});
  Deadline deadline = soon();
  const auto begin = Clock::now();
  const net::Fd late = net::connect(address, deadline);
  store::connect_store(address, {}, soon());  // so that the one before has been accepted
  std::thread holds_up([&] { store::connect_store(address, {.rank = 7}, soon()); });
  is_held_up.pass();
  const bool is_in_time = Clock::now() - begin < store::kGreetingTime;
  if (is_in_time) say(late, hello_bytes());
  std::this_thread::sleep_for(store::kGreetingTime);  // this much is what passes
  goes_on.open();
  holds_up.join();
  EXPECT_TRUE(!is_in_time || is_answered(late));
}

TEST(StoreCrowd, ThoseWhoAreInAreServedBetween) {
  constexpr int kCrowd = 600;
  const std::string address = net::random_address("tutti-test");
  Gate is_held_up, goes_on;
  std::atomic<int> refused{0};
  const auto admit = [&](const store::Hello& hello, const net::Peer&) {
    if (hello.rank == 7) {
      is_held_up.open();
      goes_on.pass();
    }
    if (hello.rank >= 0) return std::optional<Error>();
    ++refused;  // as slowly as by reading /proc
    for (const auto end = Clock::now() + 5ms; Clock::now() < end;) {
    }
    return std::optional(Error(ErrorCode::kUnauthenticated, "none of ours"));
  };
  const store::Server server({.listener = net::listen(address), .admit = admit});
  const auto store = store::connect_store(address, {.rank = 0}, soon()).store;
  std::thread holds_up([&] { store::connect_store(address, {.rank = 7}, soon()); });
  is_held_up.pass();
  const std::vector<net::Fd> crowd = connect_many(address, kCrowd, hello_bytes());
  goes_on.open();
  store->set("k", "v");
  EXPECT_LT(refused.load(), kCrowd / 2);
  holds_up.join();
}

TEST(StoreCrowd, AStrangerOfAnotherUserCostsNoSession) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes root";
  constexpr int kStrangers = 2 * static_cast<int>(store::kMaxUngreeted);
  const std::string address = net::random_address("tutti-test");
  net::Fd listener = net::listen(address);
  const std::vector<net::Fd> own = connect_many(address, 1);
  const pid_t pid = ::fork();
  if (pid == 0) {
    bool all_closed = ::setgroups(0, nullptr) == 0 && ::setresuid(65534, 65534, 65534) == 0;
    try {
      for (const net::Fd& stranger : connect_many(address, kStrangers)) {
        all_closed = all_closed && is_closed_by_server(stranger);
      }
    } catch (const Error&) {
      all_closed = false;
    }
    ::_exit(all_closed ? 0 : 1);
  }
  const auto begin = Clock::now();
  const store::Server server({.listener = std::move(listener)});
  int status = -1;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  bool is_served = false;
  try {
    say(own[0], hello_bytes());
    is_served = is_answered(own[0]);
  } catch (const Error&) {
  }
  // They have displaced nobody; its own time may be over by now.
  EXPECT_TRUE(is_served || Clock::now() - begin >= store::kGreetingTime);
}

TEST(StoreCrowd, AClientThatIsDroppedUnheardComesAgain) {
  const std::string address = net::random_address("tutti-test");
  net::Fd listener = net::listen(address);
  std::thread client([&] { store::connect_store(address, {}, soon()).store->set("k", "v"); });
  for (int dropped = 0; dropped < 3;) {
    Deadline deadline = soon();
    ASSERT_EQ(net::poll_readable(listener.get(), deadline), net::PollResult::ready);
    dropped += net::accept(listener.get()).socket ? 1 : 0;
  }
  const store::Server server({.listener = std::move(listener)});
  client.join();
}

TEST(StoreCrowd, WhoeverIsDroppedEachTimeIsToldSo) {
  const std::string address = net::random_address("tutti-test");
  const net::Fd listener = net::listen(address);
  std::atomic<bool> is_over{false};
  std::thread server([&] {
    while (!is_over.load()) {
      Deadline soon = Deadline::after(1ms);
      net::poll_readable(listener.get(), soon);
      net::accept(listener.get());
    }
  });
  const Error error = told_in_time("closed every connection", [&](Store::Timeout time) {
    store::connect_store(address, {}, Deadline::after(time));
  });
  is_over = true;
  server.join();
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  expect_text(error, "the store at " + address + " of pid " + std::to_string(::getpid()));
  expect_text(error,
              "closed every connection before it answered, until the deadline: it is no store of "
              "Tutti, or cannot take any more");
}

}  // namespace
}  // namespace tutti
