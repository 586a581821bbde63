// A rank that ends in one of the ways of tests/e2e/endings.h, and says what it was told of a
// failure, and how: "told by throw: kTimeout".
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tutti/tutti.h"

namespace {

using namespace std::chrono_literals;
using tutti::Error;
using tutti::ProcessGroup;

/// Long enough for a control thread to look at the marks of the others several times.
constexpr auto kWhile = 150ms;

int milliseconds = 300;  ///< how long a rank is stopped
ProcessGroup static_world;

void told(const char* how, const Error& failure) {
  std::printf("told by %s: %s\n", how, std::string(name_of(failure.code())).c_str());
  std::fflush(stdout);
}

void watch(ProcessGroup& group) {
  group.on_failure([](const Error& failure) { told("callback", failure); });
}

bool throws(const std::function<void()>& call) {
  try {
    call();
    return false;
  } catch (const Error& failure) {
    told("throw", failure);
    return true;
  }
}

void work(ProcessGroup& group) {
  std::vector<float> data(1000, 1.0f);
  group.all_reduce(data);
}

bool is_chosen(const ProcessGroup& group) { return group.rank() == 1; }

ProcessGroup watched_world() {
  auto world = tutti::init_process_group();
  watch(world);
  work(world);
  return world;
}

/// Closes; then rank 1 ends by `end` while the others still run.
int close_then(const std::function<void()>& end) {
  auto world = watched_world();
  auto group = world.new_group({0, 1, 2});
  watch(group);
  work(group);
  group.close();
  world.close();
  if (is_chosen(world)) end();
  std::this_thread::sleep_for(kWhile);
  if (world.error()) told("error", *world.error());
  return 0;
}

int leave_static() {
  static_world = watched_world();
  std::exit(0);
}

/// Rank 1 is stopped while it leaves, and the others are gone when it goes on.
int stopped(bool closes) {
  int now[2];
  if (::pipe(now) != 0) return 9;
  const pid_t rank = ::getpid();
  if (::fork() == 0) {
    char byte = 0;
    ::close(now[1]);
    if (::read(now[0], &byte, 1) == 1) {
      ::kill(rank, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      ::kill(rank, SIGCONT);
    }
    ::_exit(0);
  }
  auto world = watched_world();
  if (is_chosen(world) && ::write(now[1], "!", 1) != 1) return 9;
  ::close(now[1]);
  if (!closes) return 0;
  world.close();
  ::_exit(0);
}

/// Every rank broadcasts from itself: nobody sees it before the end.
void disagree(ProcessGroup& group) {
  int x = group.rank();
  group.broadcast(x, {.root = group.rank()});
}

int roots() {
  auto world = tutti::init_process_group();
  disagree(world);
  return 0;
}

/// Rank 1 makes `operations`, the others catch what a further one throws.
int fewer(int operations) {
  auto world = tutti::init_process_group();
  for (int i = 0; i < operations; ++i) work(world);
  if (!is_chosen(world)) throws([&] { work(world); });
  return 0;
}

int leave_open() {
  auto world = tutti::init_process_group();
  work(world);
  if (is_chosen(world)) ::_exit(0);
  std::this_thread::sleep_for(kWhile);
  return 0;
}

/// The line of the group that failed has been used again long ago.
int used_again() {
  auto world = tutti::init_process_group();
  {
    auto group = world.new_group({0, 1, 2});
    disagree(group);
  }
  for (int i = 0; i < 40; ++i) world.new_group({0, 1, 2}).close();
  world.close();
  return 0;
}

int second_world() {
  tutti::init_process_group().close();
  auto world = tutti::init_process_group();
  disagree(world);
  return 0;
}

/// Rank 0 waits in vain and is told; rank 2 never touches the group again.
int unaware() {
  auto world = tutti::init_process_group();
  auto aside = world.new_group({0, 2});  // in which rank 2 hears when it may go
  work(world);
  float x = 0;
  if (world.rank() == 0) {
    throws([&] { world.all_reduce(x, {.timeout = 100ms}); });
    aside.send(x, 1);
  }
  if (is_chosen(world)) {
    while (!world.error()) std::this_thread::sleep_for(1ms);
    told("error", *world.error());
  }
  if (world.rank() == 2) aside.recv(x, 0);
  std::this_thread::sleep_for(kWhile + 100ms);
  return 0;
}

/// The destructor of rank 1 has given up waiting when the others call again.
int too_late() {
  auto world = tutti::init_process_group();
  work(world);
  if (is_chosen(world)) return 0;
  std::this_thread::sleep_for(2300ms);
  throws([&] { work(world); });
  return 0;
}

/// Until the others have given up.
void be_late(ProcessGroup& world) {
  while (!world.error()) std::this_thread::sleep_for(1ms);
}

/// Rank 1 calls something else and ends; the others go on in a group of their own.
int outlive(const std::function<void(ProcessGroup&)>& what, bool chosen_lives,
            tutti::Timeout timeout = {}) {
  auto world = tutti::init_process_group();
  throws([&] {
    work(world);
    if (is_chosen(world)) what(world);
    for (;;) {
      std::vector<float> data(1000, 1.0f);
      world.all_reduce(data, {.timeout = timeout});
    }
  });
  auto survivors = chosen_lives ? world.new_group({0, 1, 2}) : world.new_group({0, 2});
  work(survivors);
  survivors.close();
  return 0;
}

/// The exception that tells a failure unwinds through an idle group on each rank, a little later on
/// one of them.
int unwind() {
  auto world = tutti::init_process_group();
  throws([&] {
    const auto idle = world.new_group({0, 1, 2});
    if (is_chosen(world)) be_late(world);
    float x = 0;
    world.all_reduce(x, {.timeout = 300ms});
  });
  auto survivors = world.new_group({0, 1, 2});
  work(survivors);
  survivors.close();
  return 0;
}

/// All are told of a first failure and go on; then rank 0 is killed, and the others give up.
int lose(ProcessGroup& group) {
  const bool is_told = throws([&] {
    work(group);
    if (group.rank() == 0) ::raise(SIGKILL);
    work(group);
  });
  return is_told ? 1 : 0;
}

int late_then_kill() {
  auto world = tutti::init_process_group();
  throws([&] {
    if (is_chosen(world)) be_late(world);
    float x = 0;
    world.all_reduce(x, {.timeout = 300ms});
  });
  auto survivors = world.new_group({0, 1, 2});
  return lose(survivors);
}

ProcessGroup disagreed_world() {
  auto world = tutti::init_process_group();
  throws([&] {
    int x = 0;
    if (is_chosen(world)) world.broadcast(x, {.root = 1});
    for (;;) world.all_reduce(x);
  });
  return world;
}

int disagree_then_kill() {
  auto world = disagreed_world();
  auto survivors = world.new_group({0, 1, 2});
  return lose(survivors);
}

/// Of its failure no launcher reads who blamed whom: the board that it reads shows one world.
int disagree_then_kill_in_new_world() {
  disagreed_world();
  auto world = tutti::init_process_group();
  lose(world);
  return 0;
}

int hear(const std::string& how) {
  auto world = tutti::init_process_group();
  if (how == "callback") watch(world);
  try {
    work(world);
  } catch (const Error&) {  // rank 1 may be through already
  }
  if (is_chosen(world)) {
    world.abort("enough");
    return 0;
  }
  if (how == "error") {
    while (!world.error()) std::this_thread::sleep_for(1ms);
    told("error", *world.error());
  } else if (how == "work") {
    std::vector<float> data(1000, 1.0f);
    throws([&] {
      auto pending = world.all_reduce(data, tutti::async);
      pending.wait();
    });
  } else if (how == "then") {
    std::vector<float> data(1000, 1.0f);
    throws([&] {  // it may have failed already
      world.all_reduce(data, tutti::async)
          .then([](const Error* failure) { told("then", *failure); })
          .wait_for(10s);
    });
  }
  std::this_thread::sleep_for(kWhile);
  return 0;
}

int exit_in_callback() {
  static_world = tutti::init_process_group();
  static std::vector<float> data(1000, 1.0f);
  auto pending =
      static_world.all_reduce(data, tutti::async).then([](const Error*) { std::exit(7); });
  pending.wait();
  std::this_thread::sleep_for(20s);
  return 99;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  if (argc > 2) milliseconds = std::atoi(argv[2]);
  const std::map<std::string, std::function<int()>> ways = {
      {"close", [] { return close_then([] {}); }},
      {"destructor", [] { return watched_world(), 0; }},
      {"close, exit", [] { return close_then([] { std::exit(0); }); }},
      {"close, quick exit", [] { return close_then([] { ::_exit(0); }); }},
      {"close, exec", [] { return close_then([] { ::execl("/bin/true", "true", nullptr); }); }},
      {"close, kill", [] { return close_then([] { ::raise(SIGKILL); }); }},
      {"static, exit", leave_static},
      {"stopped in close", [] { return stopped(true); }},
      {"stopped in destructor", [] { return stopped(false); }},
      {"roots", roots},
      {"fewer", [] { return fewer(1); }},
      {"none", [] { return fewer(0); }},
      {"leave open", leave_open},
      {"used again", used_again},
      {"second world", second_world},
      {"unaware", unaware},
      {"too late", too_late},
      {"timeout", [] { return outlive(be_late, true, 300ms); }},
      {"abort", [] { return outlive([](auto& world) { world.abort("enough"); }, true); }},
      {"exit, survivors", [] { return outlive([](auto&) { ::_exit(0); }, false); }},
      {"kill, survivors", [] { return outlive([](auto&) { ::raise(SIGKILL); }, false); }},
      {"unwind", unwind},
      {"timeout, kill", late_then_kill},
      {"disagree, kill", disagree_then_kill},
      {"disagree, new world, kill", disagree_then_kill_in_new_world},
      {"callback", [] { return hear("callback"); }},
      {"error", [] { return hear("error"); }},
      {"work", [] { return hear("work"); }},
      {"then", [] { return hear("then"); }},
      {"exit in callback", exit_in_callback},
  };
  const auto chosen = ways.find(way);
  if (chosen == ways.end()) {
    std::fprintf(stderr, "endings_rank: unknown way '%s'\n", way.c_str());
    return 99;
  }
  return chosen->second();
}
