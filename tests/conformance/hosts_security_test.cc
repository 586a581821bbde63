// Worlds of several hosts at every level of security: the same results, ranks that do not have the
// secret or the level of the others, and strangers at a door.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "control/hosts/door_plate.h"
#include "net/shake_hands.h"
#include "net/tcp.h"
#include "net/unix_socket.h"
#include "ranks.h"
#include "secret_file.h"

/// Of the sanitizers; null without one.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace tutti::conformance {
namespace {

using namespace std::chrono_literals;
using test_kit::Outcome;
using test_kit::Rank;

constexpr auto kHangs = 300s;  // what takes longer, on a busy machine, too: no time is promised

test_kit::RunOptions options_of(const std::string& level, const std::vector<int>& hosts,
                                const std::string& secret_file) {
  test_kit::RunOptions options{.deadline = kHangs, .hosts = hosts};
  options.init.settings = {{"security", level}, {"secret_file", secret_file}};
  return options;
}

/// A sum in many segments, long and short messages, groups.
void work_in(ProcessGroup& world) {
  std::vector<float> data(300'001);
  std::iota(data.begin(), data.end(), 0.0F);
  world.all_reduce(data);
  for (std::size_t i = 0; i < data.size(); i += 1000)
    EXPECT_EQ(data[i], static_cast<float>(i) * static_cast<float>(world.world_size())) << i;
  const int next = (world.rank() + 1) % world.world_size();
  const int previous = (world.rank() + world.world_size() - 1) % world.world_size();
  for (const std::size_t count : {std::size_t{1}, std::size_t{5000}, std::size_t{3} << 20}) {
    const std::vector<std::uint8_t> sent(count, static_cast<std::uint8_t>(world.rank()));
    std::vector<std::uint8_t> received(count);
    world.sendrecv(sent, received, {.to = next, .from = previous});
    EXPECT_EQ(received, std::vector<std::uint8_t>(count, static_cast<std::uint8_t>(previous)));
  }
  ProcessGroup ends = world.new_group({0, world.world_size() - 1});
  const int members = ends.is_member() ? ends.all_reduce_value(1) : 2;
  EXPECT_EQ(members, 2);
  world.barrier();
}

TEST(HostsSecurity, EveryLevelGivesTheSameResults) {
  const SecretFile secret("a secret that nobody guesses\n");
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 1, 2}}) {
    for (const char* level : {"none", "opportunistic", "auth", "integrity"}) {
      SCOPED_TRACE(level);
      on_ranks(static_cast<int>(hosts.size()), work_in, options_of(level, hosts, secret.path()));
    }
  }
}

/// What init says on each of three ranks, the last of which has settings of its own.
std::vector<Outcome> when_the_last_differs(const Settings& of_all, const Settings& of_last) {
  return test_kit::collect_ranks(3,
                                 [&](const Rank& me) {
                                   InitOptions init = me.init;
                                   for (const auto& [name, value] : me.rank == 2 ? of_last : of_all)
                                     init.settings[name] = value;
                                   init.timeout = 20s;
                                   init_process_group(init);
                                   return std::string("is in the world");
                                 },
                                 {.deadline = kHangs, .hosts = {0, 0, 1}});
}

TEST(HostsSecurity, ARankWithAnotherSecretIsNamedByAllAtOnce) {
  const SecretFile secret("a secret that nobody guesses"), another("one that differs from that");
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes =
      when_the_last_differs({{"security", "auth"}, {"secret_file", secret.path()}},
                            {{"security", "auth"}, {"secret_file", another.path()}});
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.error) << outcome.result;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kUnauthenticated) << outcome.failure;
    expect_text(*outcome.error, "do not have the same secret");
    expect_text(*outcome.error, "rank 2 on ");
    expect_text(*outcome.error, "TUTTI_SECRET_FILE (that of rank ");
    const bool is_last = &outcome == &outcomes.back();
    expect_text(*outcome.error, " is " + (is_last ? another : secret).path() + ")");
    EXPECT_EQ(outcome.failure.find("nobody guesses"), std::string::npos);
    EXPECT_EQ(outcome.error->context().culprits, std::vector<int>{2}) << outcome.failure;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
}

TEST(HostsSecurity, ARankOfAnotherLevelIsNamedWithBoth) {
  const SecretFile secret("a secret that nobody guesses");
  for (const Outcome& outcome :
       when_the_last_differs({{"security", "auth"}, {"secret_file", secret.path()}},
                             {{"security", "opportunistic"}})) {
    ASSERT_TRUE(outcome.error) << outcome.result;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kInvalidArgument);
    expect_text(*outcome.error, "security=auth on rank 0, security=opportunistic on rank 2");
    EXPECT_EQ(outcome.error->context().culprits, std::vector<int>{2}) << outcome.failure;
  }
}

TEST(HostsSecurity, WithoutASecretNoRankComesIn) {
  for (const Outcome& outcome :
       when_the_last_differs({{"security", "auth"}}, {{"security", "auth"}})) {
    ASSERT_TRUE(outcome.error) << outcome.result;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kInvalidArgument);
    expect_text(*outcome.error, "needs a secret that all ranks know");
  }
}

TEST(HostsSecurity, EncryptionIsRefusedByName) {
  for (const Outcome& outcome :
       when_the_last_differs({{"security", "encrypt"}}, {{"security", "encrypt"}})) {
    ASSERT_TRUE(outcome.error) << outcome.result;
    EXPECT_EQ(outcome.error->code(), ErrorCode::kUnsupported);
    expect_text(*outcome.error, "TUTTI_SECURITY=encrypt");
  }
}

/// Where rank 1 of the world in `store` can be called.
net::TcpAddress door_of_rank_1(Store& store) {
  const std::string plate = store.get("world//1/door/1", 20s);
  return *net::TcpAddress::parse(plate.substr(0, plate.find('\n')));
}

/// Of this process: resident, or allocated where a sanitizer keeps what was freed.
long used_bytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return static_cast<long>(__sanitizer_get_current_allocated_bytes());
  std::ifstream file("/proc/self/statm");
  long pages = 0, resident_pages = 0;
  file >> pages >> resident_pages;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

net::Fd call_at(const net::TcpAddress& door) {
  Deadline deadline = Deadline::after(20s);
  return net::connect_tcp(door, deadline);
}

/// As somebody who knows all that can be read in the store, but no key.
void disturb(const net::TcpAddress& door, int round) {
  const net::Fd socket = call_at(door);
  Deadline deadline = Deadline::after(20s);
  if (round % 3 == 0) {
    const std::string garbage(200, static_cast<char>(round));
    net::send_all(socket.get(), net::bytes_of(garbage), deadline);
    return;
  }
  const net::Claim claim{.purpose = round % 3 == 1 ? net::Purpose::line : net::Purpose::data,
                         .from = 0,
                         .to = 1,
                         .group = 1};
  net::Handshake handshake = net::Handshake::calling(claim, net::Level::opportunistic, net::Key());
  EXPECT_TRUE(net::shake_hands(handshake, socket.get(), deadline));
  EXPECT_EQ(handshake.outcome(), net::Handshake::Outcome::unproved);
}

TEST(HostsSecurity, StrangersAtADoorDisturbNobody) {
  test_kit::RunOptions options{.deadline = kHangs, .hosts = {0, 1}};
  options.init.store = make_memory_store();
  on_ranks(
      2,
      [&](ProcessGroup& world) {
        std::vector<float> data(10'000, 1.0F);
        world.all_reduce(data);
        if (world.rank() == 0) {
          const net::TcpAddress door = door_of_rank_1(*options.init.store);
          const long before = used_bytes();
          std::deque<net::Fd> crowd;
          for (int i = 0; i < 10'000; ++i) {
            crowd.push_back(call_at(door));
            if (crowd.size() > 400) crowd.pop_front();  // as many as there are descriptors for
            if (i % 200 == 0) disturb(door, i / 200);
          }
          EXPECT_LT(used_bytes() - before, 32 << 20);
        }
        for (int i = 0; i < 20; ++i) world.all_reduce(data);
        EXPECT_EQ(data[17], static_cast<float>(1 << 21));
        ProcessGroup another = world.new_group({1, 0});  // with connections of its own
        EXPECT_EQ(another.all_reduce_value(2), 4);
      },
      options);
}

}  // namespace
}  // namespace tutti::conformance
