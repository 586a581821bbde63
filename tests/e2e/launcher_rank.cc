// A rank for the tests of `tutti run`: does one thing and says when it is ready.
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/config.h"
#include "store/client.h"
#include "tutti/error.h"
#include "tutti/tutti.h"

namespace {

using namespace std::chrono_literals;

int number_of(const char* name) {
  const auto environment = tutti::read_environment();
  const auto entry = environment.find(std::string_view(name));
  return entry == environment.end() ? -1 : std::atoi(entry->second.c_str());
}

[[noreturn]] void hold() {
  for (;;) ::pause();
}

/// Two generations below, each in a session of its own, deaf to what a terminal sends.
int tree() {
  for (int level = 0; level < 2; ++level) {
    if (::fork() != 0) break;
    ::setsid();
    for (const int number : {SIGHUP, SIGINT, SIGTERM}) ::signal(number, SIG_IGN);
  }
  std::printf("ready %d\n", ::getpid());
  std::fflush(stdout);
  hold();
}

/// Says what it hears; SIGTERM ends it well.
int listen() {
  sigset_t heard;
  ::sigemptyset(&heard);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    ::sigaddset(&heard, number);
  }
  ::sigprocmask(SIG_BLOCK, &heard, nullptr);
  std::puts("ready");
  std::fflush(stdout);
  for (;;) {
    int number = 0;
    ::sigwait(&heard, &number);
    std::printf("heard %s\n", ::sigabbrev_np(number));
    std::fflush(stdout);
    if (number == SIGTERM) return 0;
  }
}

/// Stops as by Ctrl-Z, once it is told to: as if it had handled that late.
int suspend() {
  std::puts("ready");
  std::fflush(stdout);
  std::getchar();
  ::raise(SIGTSTP);
  std::puts("went on");
  return 0;
}

/// Lines of many lengths in pieces that do not end where lines do.
int chatter(int lines) {
  std::string text;
  for (int line = 0; line < lines; ++line) {
    text += std::to_string(line) + " " +
            std::string(static_cast<std::size_t>(line * 37 % 5000), 'x') + " end\n";
  }
  for (std::size_t at = 0; at < text.size(); at += 1777) {
    const std::size_t length = std::min<std::size_t>(1777, text.size() - at);
    std::size_t done = 0;
    while (done < length) {
      const ssize_t out = ::write(STDOUT_FILENO, text.data() + at + done, length - done);
      if (out < 0) return 1;
      done += static_cast<std::size_t>(out);
    }
  }
  return 0;
}

/// Meets the others at the agent and waits for a key that nobody sets.
int meet(bool may_hear_a_failure) {
  const auto environment = tutti::read_environment();
  const tutti::store::Hello hello{.rank = number_of("RANK"), .world_size = number_of("WORLD_SIZE")};
  auto connected = tutti::store::connect_store(environment.at("TUTTI_AGENT"), hello,
                                               tutti::Deadline::after(20s));
  std::printf("ready board=%d\n", connected.descriptor ? 1 : 0);
  std::fflush(stdout);
  try {
    connected.store->get("never", 60s);
  } catch (const tutti::Error& error) {
    if (!may_hear_a_failure) throw;
    std::printf("told: %s\n", error.what());
    return 0;
  }
  return 9;
}

/// Joins at the agent as init does, and leaves with 0; the others wait in init and do not catch.
int leave_init(bool chosen) {
  if (!chosen) {
    auto world = tutti::init_process_group();
    return 9;
  }
  const auto environment = tutti::read_environment();
  const tutti::store::Hello hello{.rank = number_of("RANK"), .world_size = number_of("WORLD_SIZE")};
  auto connected = tutti::store::connect_store(environment.at("TUTTI_AGENT"), hello,
                                               tutti::Deadline::after(20s));
  return 0;
}

/// A program with OpenMP.
int with_openmp(const std::string& library) {
  if (!library.empty() && ::dlopen(library.c_str(), RTLD_NOW) == nullptr) return 77;
  auto world = tutti::init_process_group();
  world.barrier();
  world.close();  // which has more time than a destructor
  return 0;
}

/// As `gosu` and `setpriv` make a program of root's start.
int without_root() {
  if (::setgid(65534) != 0 || ::setuid(65534) != 0) return 77;
  return with_openmp({});
}

/// Becomes a program to which the kernel refuses pidfd_open, as a sandbox may.
int refuse_pidfd(char** command) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 77;
  ::execv(command[0], command);
  return 126;
}

/// Becomes a program whose process group has a parent that could continue it.
int in_a_group_of_its_own(char** command) {
  ::setpgid(0, 0);
  ::execv(command[0], command);
  return 126;
}

/// Deaf to SIGINT.
int deaf() {
  ::signal(SIGINT, SIG_IGN);
  std::printf("ready %d\n", ::getpid());
  std::fflush(stdout);
  hold();
}

/// Without a world, which a rank may never ask for.
int uncaught(const std::string& what) {
  std::printf("printed before the end\n");  // stays in the buffer of a pipe
  if (what == "error") throw tutti::Error(tutti::ErrorCode::kTimeout, "made up for a test");
  if (what == "chained") {  // a handler of the program's, as those of crash reports are
    static const std::terminate_handler former = std::get_terminate();
    std::set_terminate([] {
      std::fputs("the program's own handler\n", stderr);
      former();
    });
    tutti::init_process_group().close();
  }
  throw std::runtime_error("not ours");
}

/// Two worlds, which meet at the same moment.
int two_worlds() {
  const auto make = [](const char* name) {
    auto world = tutti::init_process_group({.timeout = 20s, .name = name});
    if (world.all_reduce_value(1) != world.world_size()) std::abort();
    world.close();
  };
  std::thread other(make, "other");
  make("one");
  other.join();
  return 0;
}

/// Prints between operations and while groups are made.
int prints() {
  auto world = tutti::init_process_group();
  for (int round = 0; round < 20; ++round) {
    std::puts("what would be garbage in a socket");
    std::fflush(stdout);
    std::fputs("and what would be another piece of it\n", stderr);
    world.new_group({0, 1, 2}).barrier();
  }
  return 0;
}

/// A world in which one rank leaves without a word; the others do not catch.
int leave_a_world(int code, bool chosen) {
  auto world = tutti::init_process_group();
  std::vector<float> data(1000, 1.0f);
  world.all_reduce(data);
  if (chosen) ::_exit(code);
  for (;;) world.all_reduce(data);
}

/// The same, killed, where the program has turned the launcher's numbers round.
int leave_a_renumbered_world(bool chosen) {
  const int world_size = number_of("WORLD_SIZE");
  auto world = tutti::init_process_group(
      {.rank = world_size - 1 - number_of("RANK"), .world_size = world_size});
  std::printf("ready %d\n", ::getpid());
  std::fflush(stdout);
  std::vector<float> data(1000, 1.0f);
  world.all_reduce(data);
  if (chosen) ::raise(SIGKILL);
  for (;;) world.all_reduce(data);
}

/// The chosen rank and the others disagree about the second operation; nobody catches.
int disagree(bool chosen) {
  auto world = tutti::init_process_group();
  std::vector<float> data(1000, 1.0f);
  world.all_reduce(data);
  if (chosen) world.broadcast(data, {.root = 1});
  for (;;) world.all_reduce(data);
}

/// Each receives from the next; nobody catches.
int wait_in_a_ring() {
  auto world = tutti::init_process_group();
  float x = 0;
  world.recv(x, (world.rank() + 1) % world.world_size());
  return 0;
}

/// The chosen rank aborts the world and takes its time to end; nobody catches.
int give_up(bool chosen) {
  auto world = tutti::init_process_group();
  std::vector<float> data(1000, 1.0f);
  world.all_reduce(data);
  if (chosen) {
    world.abort("enough");
    std::this_thread::sleep_for(300ms);
    return 6;
  }
  for (;;) world.all_reduce(data);
}

/// In the chosen rank an exception of the program unwinds through three groups, in the others what
/// they are told of it. Each returns what shows which.
int unwind(bool chosen, bool is_busy) try {
  auto world = tutti::init_process_group();
  auto outer = world.split({.color = 0});
  auto inner = world.split({.color = 0});
  float x = 1;
  float y = 1;
  tutti::Work work;
  if (is_busy) work = outer.all_reduce(x, tutti::async);
  if (chosen) throw std::runtime_error("disk full");
  inner.all_reduce(y);
  return 0;
} catch (const tutti::Error&) {
  return 5;
} catch (const std::exception& error) {
  std::puts(error.what());
  return 7;
}

/// Rank 0 waits in vain for a message until somebody ends the job.
int wait_in_vain(bool chosen) {
  auto world = tutti::init_process_group();
  world.barrier();
  std::printf("ready %d\n", ::getpid());
  std::fflush(stdout);
  float x = 0;
  if (chosen) world.recv(x, 1, {.tag = 3});
  hold();
}

/// All but the chosen one give up waiting for it.
int give_up_close(bool chosen) {
  auto world = tutti::init_process_group();
  world.barrier();
  if (chosen) hold();
  try {
    world.close(2s);
  } catch (const tutti::Error& error) {
    return error.code() == tutti::ErrorCode::kTimeout ? 5 : 6;
  }
  return 7;
}

int give_up_init(bool chosen) {
  if (chosen) hold();
  try {
    tutti::init_process_group();
  } catch (const tutti::Error& error) {
    return error.code() == tutti::ErrorCode::kTimeout ? 5 : 6;
  }
  return 7;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::string value = argc > 2 ? argv[2] : "";
  const bool chosen = argc <= 3 || number_of("RANK") == std::atoi(argv[3]);
  if (mode == "tree") return tree();
  if (mode == "listen") return listen();
  if (mode == "suspend") return suspend();
  if (mode == "chatter") return chatter(std::atoi(value.c_str()));
  if (mode == "meet") return meet(true);
  if (mode == "prints") return prints();
  if (mode == "two-worlds") return two_worlds();
  if (mode == "meet-unless") return chosen ? std::atoi(value.c_str()) : meet(true);
  if (mode == "leave-world") return leave_a_world(std::atoi(value.c_str()), chosen);
  if (mode == "leave-renumbered") return leave_a_renumbered_world(chosen);
  if (mode == "disagree") return disagree(chosen);
  if (mode == "wait-in-a-ring") return wait_in_a_ring();
  if (mode == "give-up") return give_up(chosen);
  if (mode == "unwind") return unwind(chosen, value == "busy");
  if (mode == "wait-in-vain") return wait_in_vain(chosen);
  if (mode == "leave-init") return leave_init(chosen);
  if (mode == "give-up-close") return give_up_close(chosen);
  if (mode == "give-up-init") return give_up_init(chosen);
  if (mode == "openmp") return with_openmp(value);
  if (mode == "without-root") return without_root();
  if (mode == "refuse-pidfd") return refuse_pidfd(argv + 2);
  if (mode == "own-group") return in_a_group_of_its_own(argv + 2);
  if (mode == "deaf") return deaf();
  if (mode == "uncaught") return uncaught(value);
  if (mode == "exit") {
    if (chosen) return std::atoi(value.c_str());
    hold();
  }
  if (mode == "hold") {
    std::printf("ready %d\n", ::getpid());
    std::fflush(stdout);
    hold();
  }
  std::fprintf(stderr, "launcher_rank: unknown mode '%s'\n", mode.c_str());
  return 99;
}
