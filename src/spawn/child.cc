#include "spawn/child.h"

#include <cxxabi.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/cores.h"
#include "base/rank_thread.h"
#include "base/run_defaults.h"
#include "base/signals.h"
#include "control/untold.h"
#include "net/system_error.h"
#include "rendezvous/identity.h"
#include "spawn/end_signals.h"
#include "tutti/error.h"

namespace tutti::spawning {
namespace {

constexpr const char* kVariable = "TUTTI_SPAWN";

/// Whether a variable is what a launcher tells its process, as whom and where it meets others.
bool is_of_launcher(std::string_view name) {
  static constexpr std::array<std::string_view, 19> kNames = {
      "RANK",         "WORLD_SIZE",      "LOCAL_RANK",          "LOCAL_WORLD_SIZE",
      "GROUP_RANK",   "ROLE_RANK",       "GROUP_WORLD_SIZE",    "ROLE_WORLD_SIZE",
      "ROLE_NAME",    "TUTTI_AGENT",     "TUTTI_RANK",          "TUTTI_WORLD_SIZE",
      "TUTTI_SPAWN",  "MPI_LOCALRANKID", "TUTTI_INIT_METHOD",   "MPI_LOCALNRANKS",
      "SLURM_PROCID", "SLURM_LOCALID",   "SLURM_STEP_NUM_TASKS"};
  static constexpr std::array<std::string_view, 7> kBeginnings = {
      "TORCHELASTIC_", "OMPI_COMM_WORLD_", "OMPI_MCA_orte_", "OMPI_MCA_ess_", "PMI_", "PMIX_",
      "HYDI_"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [name](std::string_view beginning) { return name.starts_with(beginning); });
}

/// A rank by exec, from its beginning on.
struct Executed {
  Reports reports;
  int rank = 0;
};

/// Both numbers of "7:2": the descriptor of the reports, and the rank.
std::optional<std::array<int, 2>> parse(std::string_view text) {
  std::array<int, 2> numbers{};
  const std::size_t colon = text.find(':');
  if (colon == text.npos) return std::nullopt;
  const std::array<std::string_view, 2> parts = {text.substr(0, colon), text.substr(colon + 1)};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const char* const end = parts[i].data() + parts[i].size();
    const auto [stop, problem] = std::from_chars(parts[i].data(), end, numbers[i]);
    if (problem != std::errc() || stop != end) return std::nullopt;
  }
  return numbers;
}

std::optional<Executed> find_executed() {
  const Environment variables = read_environment();
  const auto entry = variables.find(kVariable);
  if (entry == variables.end()) return std::nullopt;
  const auto numbers = parse(entry->second);
  if (!numbers) return std::nullopt;
  std::optional<Reports> reports = Reports::find((*numbers)[0]);
  // What a rank has started on its way is none: the keeper is the parent of ranks alone.
  if (!reports || reports->call().keeper.load() != ::getppid()) return std::nullopt;
  const int rank = (*numbers)[1];
  if (rank < 0 || rank >= reports->call().world_size) return std::nullopt;
  return Executed{*std::move(reports), rank};
}

/// What is known of this process. Never destroyed: ranks exit from inside.
struct State {
  std::mutex mutex;
  std::map<std::pair<std::string, std::uint64_t>, int> calls;  // mutex; by site and callable
  std::atomic<bool> is_rank{false};                            ///< the function runs, or ran
  const pid_t pid = ::getpid();
  const std::optional<Executed> executed = find_executed();
};
State& state() {
  static State& here = *new State;
  return here;
}

/// A copy that it forks is not.
bool is_on_its_way(const State& here) {
  return here.executed && !here.is_rank.load() && here.pid == ::getpid();
}

/// A program may have asked it to throw where it cannot write.
template <class OutputStream>
void flush(OutputStream& stream) noexcept try {
  stream.flush();
} catch (const std::exception&) {  // as its state says now
}

}  // namespace

void flush_output() noexcept {
  for (std::ostream* stream : {&std::cout, &std::cerr, &std::clog}) flush(*stream);
  for (std::wostream* stream : {&std::wcout, &std::wcerr, &std::wclog}) flush(*stream);
  std::fflush(nullptr);
}

namespace {

/// The process ends here, whatever the function does to its thread: the frames below are main's.
int exit_code_of(const std::function<int(int rank)>& function, int rank, Report& report) try {
  return run_and_report(function, rank, report);
} catch (abi::__forced_unwind&) {
  flush_output();
  ::_exit(1);
}

[[noreturn]] void be_executed_rank(const std::function<int(int rank)>& function, int world_size,
                                   const Executed& self) {
  const int expected = self.reports.call().world_size;
  Report& report = self.reports.of(self.rank);
  const std::function<int(int)> refuse = [&](int) -> int {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("here the call asks for {} ranks, and where it was made for {}: a rank "
                            "by exec must come to the same call",
                            world_size, expected));
  };
  state().is_rank.store(true);
  forget_on_terminate();  // main's
  std::exit(exit_code_of(world_size == expected ? function : refuse, self.rank, report));
}

}  // namespace

Environment rank_variables(Environment inherited, int rank, int world_size,
                           const std::string& agent) {
  std::erase_if(inherited, [](const auto& variable) { return is_of_launcher(variable.first); });
  inherited["RANK"] = inherited["LOCAL_RANK"] = std::to_string(rank);
  inherited["WORLD_SIZE"] = inherited["LOCAL_WORLD_SIZE"] = std::to_string(world_size);
  inherited["TUTTI_AGENT"] = agent;
  inherited[kRunAround] = "";  // they are gone
  inherited[kVariable] = fmt::format("-1:{}", rank);
  // What `tutti run` has set for its one rank is not for several.
  std::istringstream defaults(inherited[kRunDefaults]);
  inherited.erase(kRunDefaults);
  for (std::string word; defaults >> word;) {
    const std::size_t equals = std::min(word.find('='), word.size());
    const auto set = inherited.find(word.substr(0, equals));
    if (set != inherited.end() && word == set->first + "=" + set->second) inherited.erase(set);
  }
  // As under `tutti run`: all ranks together have the cores of this process.
  inherited.emplace("OMP_NUM_THREADS", std::to_string(std::max(1, usable_cores() / world_size)));
  inherited.emplace("OMP_WAIT_POLICY", "PASSIVE");
  return inherited;
}

namespace {

/// Empty where /proc does not say them.
std::vector<std::string> read_arguments() {
  std::string text;
  const net::Fd fd(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> buffer;
  ssize_t got = 0;
  while (fd && ((got = ::read(fd.get(), buffer.data(), buffer.size())) > 0 ||
                (got < 0 && errno == EINTR))) {
    if (got > 0) text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  std::vector<std::string> arguments;
  if (text.empty()) return arguments;
  if (text.back() == '\0') text.pop_back();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\0', begin), text.size());
    arguments.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return arguments;
}

/// Whether that file has the program headers of what runs here.
bool is_this_program(const std::string& path) {
  const auto* const headers = reinterpret_cast<const void*>(::getauxval(AT_PHDR));
  const net::Fd file(path.empty() ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ElfW(Ehdr) elf = {};
  if (headers == nullptr || !file || ::read(file.get(), &elf, sizeof elf) != sizeof elf ||
      !std::equal(elf.e_ident, elf.e_ident + SELFMAG, ELFMAG)) {
    return false;
  }
  std::vector<char> there(std::size_t{elf.e_phnum} * elf.e_phentsize);
  const auto at = static_cast<off_t>(elf.e_phoff);
  return elf.e_phnum == ::getauxval(AT_PHNUM) && elf.e_phentsize == ::getauxval(AT_PHENT) &&
         ::pread(file.get(), there.data(), there.size(), at) == std::ssize(there) &&
         std::memcmp(there.data(), headers, there.size()) == 0;
}

/// The file that the kernel has started, for where /proc does not say it. Of a script that is the
/// script, and not its interpreter; and a library that is loaded late may be in another folder.
std::string read_path() {
  const auto* const name = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  std::error_code failed;
  std::string path = name == nullptr ? "" : std::filesystem::canonical(name, failed).string();
  return is_this_program(path) ? path : "";
}

/// This program as it was started.
struct Started {
  std::vector<std::string> arguments;  ///< as main gets them
  std::string path;                    ///< empty: nobody has said it
  struct stat file = {};               ///< at that path
};
Started& started() {
  static Started& here = *new Started;
  return here;
}

/// Before main runs, which may write into its arguments and change its folder. glibc calls it as it
/// calls main.
[[gnu::constructor]] void note_start(int count, char** words) {
  Started& here = started();
  here.arguments = read_arguments();
  if (here.arguments.empty()) here.arguments.assign(words, words + count);
  here.path = read_path();
  ::stat(here.path.c_str(), &here.file);
}

/// This program by its own name, which ps shows; by /proc where a file of that name is another one
/// by now, or none.
std::string path_of_this_program() {
  constexpr const char* kAlways = "/proc/self/exe";
  std::error_code failed;
  std::string path = std::filesystem::read_symlink(kAlways, failed).string();
  if (!failed) return std::filesystem::equivalent(path, kAlways, failed) ? path : kAlways;
  const Started& here = started();
  struct stat now = {};
  const bool is_same = ::stat(here.path.c_str(), &now) == 0 && now.st_dev == here.file.st_dev &&
                       now.st_ino == here.file.st_ino;
  if (is_same) return here.path;
  throw Error(ErrorCode::kSystem,
              fmt::format("ranks by exec: /proc does not say which program this is, and {}; mount "
                          "/proc (mount -t proc proc /proc), or use Start::thread",
                          here.path.empty()
                              ? "no file is known that is this program (a script has one of its "
                                "own; a library that is loaded late may be in another folder)"
                              : "the file it was started from, " + here.path +
                                    ", is gone or another one by now"));
}

}  // namespace

std::vector<std::string> Command::of_this_program() { return started().arguments; }

Command::Command(const std::vector<std::string>& arguments, const Environment& variables)
    : path_(path_of_this_program()), texts_(arguments) {
  for (const auto& [name, value] : variables) texts_.push_back(fmt::format("{}={}", name, value));
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    (i < arguments.size() ? arguments_ : variables_).push_back(texts_[i].data());
  }
  arguments_.push_back(nullptr);
  variables_.push_back(nullptr);
}

int Command::execute() const noexcept {
  ::execve(path_.c_str(), arguments_.data(), variables_.data());
  return errno;
}

void be_forked_rank(const std::function<int(int rank)>& function, int rank,
                    const Environment& variables, Report& report) {
  state().is_rank.store(true);
  EndSignals::forget();
  control::Untold::of_process().forget();
  for (const auto& [name, value] : read_environment()) {
    if (!variables.contains(name)) ::unsetenv(name.c_str());
  }
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  const int code = exit_code_of(function, rank, report);
  flush_output();
  ::_exit(code);
}

std::string rank_here() {
  if (const RankThread* thread = this_rank_thread()) {
    return fmt::format("a thread that is rank {} of {}", thread->rank, thread->world_size);
  }
  const Environment variables = read_environment();
  try {
    const rendezvous::Identity identity = rendezvous::identify(variables);
    if (identity.launcher == rendezvous::Launcher::spawn || identity.world_size > 1) {
      return fmt::format("rank {} of {} ({}, {})", identity.rank, identity.world_size,
                         identity.source, rendezvous::name_of(identity.launcher));
    }
  } catch (const Error& error) {
    return fmt::format("a rank by its environment ({})", error.what());
  }
  return {};
}

std::string site_of(const Where& where) { return fmt::format("{}:{}", where.file, where.line); }

Turn take_turn(const std::function<int(int rank)>& function, int world_size, const Where& where,
               std::uint64_t callable) {
  State& here = state();
  const std::string site = site_of(where);
  Turn turn;
  {
    const std::lock_guard lock(here.mutex);
    turn.times = ++here.calls[{site, callable}];
  }
  if (!is_on_its_way(here)) return turn;
  const Call& call = here.executed->reports.call();
  if (turn.times == call.times && callable == call.callable && site == call.site.data()) {
    be_executed_rank(function, world_size, *here.executed);
  }
  turn.is_passed = true;
  return turn;
}

void refuse_before_call() {
  const State& here = state();
  if (!is_on_its_way(here)) return;
  const Call& call = here.executed->reports.call();
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("this process was started by exec to be rank {} of {} at the call of "
                          "spawn at {}, and has not come there: a program that starts ranks by "
                          "exec makes its own world after that call",
                          here.executed->rank, call.world_size, call.site.data()));
}

}  // namespace tutti::spawning
