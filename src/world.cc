// Becoming a world: the one place that names concrete classes and hands them down.
//
// *Settings* say what is wanted, the *identity* who we are; the world *meets* at a store, compares
// the settings that must be uniform, finds its *host*, and gets a group over the backend.
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "backends/backends.h"
#include "base/config.h"
#include "base/hash.h"
#include "base/last_words.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/odd_ranks.h"
#include "base/rank_list.h"
#include "base/rank_thread.h"
#include "control/board/board.h"
#include "control/board/describe.h"
#include "control/board/owner.h"
#include "control/boards_met.h"
#include "control/host.h"
#include "control/process.h"
#include "control/untold.h"
#include "device/cuda.h"
#include "device/own.h"
#include "device/visible.h"
#include "group/check.h"
#include "group/group_impl.h"
#include "native/native.h"
#include "net/fd.h"
#include "net/interfaces.h"
#include "net/security.h"
#include "rendezvous/identity.h"
#include "rendezvous/init_method.h"
#include "rendezvous/meeting.h"
#include "rendezvous/reach.h"
#include "spawn/child.h"
#include "store/watch.h"
#include "tutti/init.h"
#include "tutti/version.h"

namespace tutti {

namespace {

using device::SeenDevices;
using rendezvous::Identity;
using rendezvous::Launcher;
using rendezvous::Meeting;

/// Who cannot join gives the others so long to come and hear why.
constexpr std::chrono::nanoseconds kTimeToTell = std::chrono::seconds(5);

static_assert(rendezvous::kMaxRanksOfHost == control::kMaxLocalRanks);

[[noreturn]] void throw_invalid(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "init_process_group: " + text);
}

/// How connections between hosts are protected. The secret is read once, and only where there are
/// such connections.
class Protection {
 public:
  explicit Protection(const Config& config) : config_(config) {}
  /// `what`: "ranks meet at 10.0.0.1:29500 over TCP", for who is told why that cannot be.
  const net::Security& of(const std::string& what) {
    if (!security_) {
      security_ = net::security_of(config_.text(Setting::security),
                                   config_.text(Setting::secret_file), what);
    }
    return *security_;
  }

 private:
  const Config& config_;
  std::optional<net::Security> security_;
};

/// The line of rank 0 that says what the level protects against, and what not.
void tell_protection(const std::string& place, net::Level level, const Config& config) {
  const bool has_idle_secret =
      level < net::Level::auth && !config.text(Setting::secret_file).empty();
  const std::string begin =
      fmt::format("ranks meet at {} over TCP, security={}{}", place, net::name_of(level),
                  has_idle_secret ? " (which leaves TUTTI_SECRET_FILE unused)" : "");
  constexpr const char* kRemedy =
      "To keep strangers out give all ranks TUTTI_SECURITY=auth and one secret in "
      "TUTTI_SECRET_FILE";
  switch (level) {
    case net::Level::none:
      return log(LogLevel::warn,
                 fmt::format("{}: whoever reaches this network can join, read and change what goes "
                             "between hosts. {}",
                             begin, kRemedy));
    case net::Level::opportunistic:
      return log(
          LogLevel::warn,
          fmt::format("{}: until all ranks are there whoever reaches that place can join or "
                      "disturb; after that nobody connects to a rank who has only listened. What "
                      "goes between hosts can be read, and changed by who is on its way. {}",
                      begin, kRemedy));
    case net::Level::auth:
    case net::Level::integrity:
      return log(LogLevel::info, begin);
  }
}

void check_timeout(std::chrono::nanoseconds timeout) {
  if (timeout > std::chrono::nanoseconds(0)) return;
  throw_invalid(fmt::format("the timeout is {:g} s, and ranks need some time to meet",
                            std::chrono::duration<double>(timeout).count()));
}

/// The rows of the table that the program gives, in either of the two ways.
Settings settings_of(const InitOptions& options) {
  Settings settings = options.settings;
  for (const char* const name : {"rank", "world_size"}) {  // -1: from the launcher
    const auto row = settings.find(name);
    if (row != settings.end() && row->second == "-1") settings.erase(row);
  }
  const auto put = [&](const char* name, const std::string& value) {
    const auto [row, is_new] = settings.try_emplace(name, value);
    if (!is_new && row->second != value) {
      throw_invalid(
          fmt::format("{} is given twice: \"{}\" among the options, \"{}\" among their "
                      "settings",
                      name, value, row->second));
    }
  };
  if (!options.backend.empty()) put("backend", options.backend);
  if (!options.init_method.empty()) put("init_method", options.init_method);
  if (!options.name.empty()) put("name", options.name);
  if (options.rank) put("rank", std::to_string(*options.rank));
  if (options.world_size) put("world_size", std::to_string(*options.world_size));
  if (options.timeout) {
    check_timeout(*options.timeout);
    const bool never = *options.timeout == std::chrono::nanoseconds::max();
    put("timeout", never ? "never" : fmt::format("{}ns", options.timeout->count()));
  }
  return settings;
}

/// A number of the program: an option, or one in its init_method.
std::optional<int> given_number(const char* name, const Settings& settings, std::int64_t option,
                                std::optional<int> in_method, const std::string& init_method) {
  if (!settings.contains(name)) return in_method;
  if (in_method && *in_method != option) {
    throw_invalid(fmt::format("{} is given twice: {} among the options, {} in init_method '{}'",
                              name, option, *in_method, init_method));
  }
  if (option != static_cast<int>(option)) {
    throw_invalid(fmt::format("{} {} is out of range: no world is so large", name, option));
  }
  return static_cast<int>(option);
}

/// Rank and size come from the program (options and init_method before TUTTI_*), else from the
/// launcher.
Identity find_identity(const InitOptions& options, const Settings& settings, const Config& config,
                       const Environment& environment) {
  const std::string& text = config.text(Setting::init_method);
  const rendezvous::InitMethod method = rendezvous::parse_init_method(text);
  rendezvous::Explicit given;
  given.rank = given_number("rank", settings, config.number(Setting::rank), method.rank, text);
  given.world_size = given_number("world_size", settings, config.number(Setting::world_size),
                                  method.world_size, text);
  if (method.is_rank_auto) {
    if (given.rank) {
      throw_invalid(
          fmt::format("rank is given twice: {} among the options, auto in init_method '{}'",
                      *given.rank, text));
    }
    if (!given.world_size) {
      throw_invalid(
          fmt::format("init_method '{}': rank=auto needs the world_size, too: add "
                      "&world_size=N, or give it among the options",
                      text));
    }
    given.rank = 0;  // until the meeting gives one
  }
  if (options.store && (!given.rank || !given.world_size)) {
    throw_invalid("a store is given, so the launcher is not asked: give rank and world_size, too");
  }
  Identity identity = rendezvous::identify(environment, given);
  // Each such process would be alone, and nothing says that it is to be.
  const bool is_nobody = identity.launcher == Launcher::none && identity.source.empty();
  if (is_nobody && method.kind != rendezvous::InitMethod::Kind::env) {
    throw_invalid(
        fmt::format("init_method '{}' says where the ranks meet, and nothing says which of them "
                    "this is: give rank and world_size among the options or in it "
                    "(?rank=0&world_size=4), set RANK and WORLD_SIZE, or start the ranks with "
                    "tutti run",
                    text));
  }
  identity.is_rank_auto = method.is_rank_auto && options.store == nullptr;
  return identity;
}

void log_beginning(const Identity& identity, const Environment& environment) {
  for (const std::string& note : identity.notes) log(LogLevel::info, note);
  // One rank of each host says it, where a launcher tells which; by hand each may have its own.
  if (identity.local_rank <= 0 && (identity.rank == 0 || !identity.is_one_host)) {
    for (const std::string& line : unknown_variables(environment)) log(LogLevel::warn, line);
  }
  if (identity.launcher == Launcher::none) {
    log(LogLevel::warn,
        "no launcher has set RANK and WORLD_SIZE: this is a world of one rank "
        "(start n ranks with: tutti run -n N PROGRAM)");
  }
}

/// What is looked for first when a job does not do what it should.
void log_world(const ProcessGroup& world, const Identity& identity, const Meeting& meeting) {
  const LogLevel level = identity.rank == 0 ? LogLevel::info : LogLevel::debug;
  if (!log_enabled(level)) return;
  const BackendInfo backend = world.backend();
  const BuildInfo build = build_info();
  log(level,
      fmt::format("this is rank {} of {} ({}); backend {} {}; met at {}; tutti {} (commit {})",
                  world.rank(), world.world_size(),
                  identity.source.empty() ? "nothing is set" : identity.source, backend.name,
                  backend.version, meeting.place, build.version, build.commit));
}

/// The settings that must not differ, one `name=value` per line, in the order of the table.
std::string uniform_settings(const Config& config) {
  std::string text;
  for (const SettingInfo& row : config.describe()) {
    if (row.uniform) text += fmt::format("{}={}\n", row.name, row.value);
  }
  return text;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

/// The last line of what a rank says of itself: what it sees of devices, in which ranks may differ.
SeenDevices take_devices(std::string* text) {
  const std::size_t end_of_settings = text->rfind('\n', text->size() - 2) + 1;
  SeenDevices seen = SeenDevices::parse(text->substr(end_of_settings));
  text->resize(end_of_settings);
  return seen;
}

/// Every rank sees every rank's settings, so that all of them refuse, with the same words. What
/// each of them sees of devices.
std::vector<SeenDevices> compare_settings(const Meeting& meeting, const Identity& identity,
                                          const Config& config, const SeenDevices& own) {
  Deadline deadline = meeting.deadline;
  std::vector<std::string> keys;
  for (int rank = 0; rank < identity.world_size; ++rank) {
    keys.push_back(fmt::format("settings/{}", rank));
  }
  meeting.store->set(keys[static_cast<std::size_t>(identity.rank)],
                     fmt::format("{}{}\n", uniform_settings(config), own.text()),
                     store::timeout_of(deadline));
  const auto look = [&] { meeting.company->look(); };
  const auto late = [&](std::span<const std::size_t> ranks) {
    return control::not_gone_on(std::vector<int>(ranks.begin(), ranks.end()), deadline);
  };
  std::vector<std::string> all = store::get_watching(*meeting.store, keys, deadline, look, late);
  std::vector<SeenDevices> devices;
  for (std::string& text : all) devices.push_back(take_devices(&text));
  OddRanks found = odd_ranks(all);
  if (found.odd.empty()) return devices;
  const int usual = found.usual, odd = found.odd.front();
  const std::vector<std::string_view> first = lines_of(all[static_cast<std::size_t>(usual)]),
                                      second = lines_of(all[static_cast<std::size_t>(odd)]);
  std::string differ;
  for (std::size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    if (first[i] != second[i]) {
      differ += fmt::format("{}{} on rank {}, {} on rank {}", differ.empty() ? "" : "; ", first[i],
                            usual, second[i], odd);
    }
  }
  if (differ.empty()) differ = "one of them has another list of settings";
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("init_process_group: settings that must be the same on all ranks differ: "
                          "{}. Give all ranks the same TUTTI_ variables and options",
                          differ),
              {.culprits = std::move(found.odd)});
}

net::AddressChoice address_choice(const Config& config) {
  return rendezvous::choice_of(config.text(Setting::socket_ifname),
                               config.source(Setting::socket_ifname));
}

net::PortRange port_range(const Config& config) {
  return net::PortRange::parse("port_range", config.text(Setting::port_range));
}

/// What the agent has written on its board.
std::vector<rendezvous::Ended> ranks_ended(const net::Fd& memory, int world_size) {
  std::vector<rendezvous::Ended> ended;
  if (!memory) return ended;
  const control::Board board(memory);
  for (int rank = 0; rank < world_size && board.world_size() == world_size; ++rank) {
    if (const auto wait_status = board.exit_of(SlotIndex(rank))) {
      ended.push_back({rank, control::describe_wait_status(*wait_status)});
    }
  }
  return ended;
}

/// Comes to the others with `lack`, if there is one, to be thrown it.
Meeting meet(const InitOptions& options, const Identity& identity, const Config& config,
             Protection& protection, const Error* lack) {
  rendezvous::MeetingOptions meeting;
  meeting.timeout = config.duration(Setting::timeout);
  meeting.lack = lack;
  if (lack != nullptr) meeting.timeout = std::min(meeting.timeout, kTimeToTell);
  meeting.init_method = config.text(Setting::init_method);
  meeting.name = config.text(Setting::name);
  meeting.store = options.store;
  // The agent's board counts as the job does.
  if (!identity.agent.empty() && !identity.is_renumbered) {
    meeting.ended = [world_size = identity.world_size](const net::Fd& board) {
      return ranks_ended(board, world_size);
    };
  }
  const auto security_at = [&](const std::string& place) -> const net::Security& {
    return protection.of(fmt::format("ranks meet at {} over TCP", place));
  };
  meeting.before_tcp = security_at;
  meeting.address = address_choice(config);
  if (lack == nullptr) meeting.ports = port_range(config);
  meeting.served_over_tcp = [&](const std::string& place) {
    set_log_rank(0);
    tell_protection(place, security_at(place).level, config);
  };
  Meeting met = rendezvous::meet(identity, meeting);
  set_log_rank(met.rank);
  return met;
}

/// The agent is to know what this process leaves untold, of whatever world, and that it goes on
/// after what failed in worlds before.
void show_agent(const Meeting& meeting, const Identity& identity) {
  // A process that has several ranks is none of them.
  if (!meeting.board || !*meeting.board || identity.launched_rank < 0 || this_rank_thread()) return;
  control::Untold::of_process().show_on(*meeting.board, SlotIndex(identity.launched_rank));
  const control::Board board(*meeting.board);
  for (const SlotIndex slot : board.slots()) {
    if (board.own_pid_of(slot) == ::getpid()) control::outlive_failures(board, slot);
  }
}

control::Deadlock deadlock_of(const std::string& word) {
  if (word == "off") return control::Deadlock::off;
  return word == "warn" ? control::Deadlock::warn : control::Deadlock::fail;
}

/// Where ranks of other hosts can call this one.
std::string own_address(const Config& config, const Meeting& meeting) {
  const bool is_v6 = meeting.address.find(':') != std::string::npos;
  const auto toward = net::TcpAddress::parse(is_v6 ? fmt::format("[{}]:0", meeting.address)
                                                   : meeting.address + ":0");
  const auto own = address_choice(config).of(toward);
  return own ? own->host() : "";
}

std::shared_ptr<control::Host> join_host(const Identity& identity, const Config& config,
                                         const Meeting& meeting, Protection& protection) {
  control::HostOptions host;
  host.store = meeting.store;
  host.board_fd = meeting.board ? meeting.board->get() : -1;
  host.rank = identity.rank;
  host.world_size = identity.world_size;
  host.host_id = config.text(Setting::host_id);
  host.address = own_address(config, meeting);
  host.ports = port_range(config);
  host.security = [&] { return protection.of("ranks of several hosts speak over TCP"); };
  Deadline deadline = meeting.deadline;
  host.timeout = deadline.left(Deadline::Clock::now());
  host.deadlock = deadlock_of(config.text(Setting::deadlock));
  host.deadlock_after = config.duration(Setting::deadlock_after);
  host.look = [&] { meeting.company->look(); };
  return control::Host::join(host);
}

/// All that needs the others before the board shows who of them lives. `*devices`: of this rank,
/// then of all.
std::shared_ptr<control::Host> meet_at_host(const Identity& identity, const Config& config,
                                            const Meeting& meeting, Protection& protection,
                                            std::vector<SeenDevices>* devices) {
  try {
    if (identity.world_size > 1) {
      *devices = compare_settings(meeting, identity, config, devices->front());
    }
    return join_host(identity, config, meeting, protection);
  } catch (const Error& error) {
    throw meeting.company->blame(error);
  }
}

ProcessGroup make_world(const Identity& identity, const Config& config, const Meeting& meeting,
                        Backends backends, Protection& protection, const SeenDevices& own_devices,
                        const Where& where) {
  const std::string& name = config.text(Setting::name);
  group::Parts parts;
  parts.name = name.empty() ? "world" : name;
  parts.id = hash_combine(hash_text(parts.name), static_cast<std::uint64_t>(meeting.round));
  parts.rank = identity.rank;
  parts.world_ranks.resize(static_cast<std::size_t>(identity.world_size));
  std::iota(parts.world_ranks.begin(), parts.world_ranks.end(), 0);
  parts.arrive = config.duration(Setting::timeout);
  parts.stall = config.duration(Setting::stall_timeout);
  parts.close_timeout = config.duration(Setting::close_timeout);
  parts.store = meeting.store;
  for (const SettingInfo& row : config.describe()) parts.settings.emplace(row.name, row.value);
  parts.check = config.flag(Setting::check);
  parts.cuda_library = config.text(Setting::cuda_library);
  parts.staging_bytes = parse_bytes("staging_bytes", config.text(Setting::staging_bytes));
  parts.make_side_of = native::make_side_of;
  const std::string& backend = config.text(Setting::backend);
  parts.backend_name = backend == kAutomatic ? "cpu:native,cuda:nccl" : backend;
  if (const RankThread* const thread = this_rank_thread()) parts.recall = thread->recall;
  std::vector<SeenDevices> devices = {own_devices};
  parts.host = meet_at_host(identity, config, meeting, protection, &devices);
  parts.may_stage = std::any_of(devices.begin(), devices.end(),
                                [](const SeenDevices& seen) { return seen.count > 0; });
  if (backend == kAutomatic) {
    parts.why_staged = device::why_no_nccl(devices);
    if (parts.why_staged.empty()) backends.for_device = backends.automatic;
  }
  const auto add_backends = [&](group::Parts& made, const GroupSpec& spec) {
    made.backend = backends.for_host(spec);
    if (backends.for_device) made.device_backend = backends.for_device(spec);
    const bool checks_itself = made.backend->info().checks_itself;
    if (!checks_itself) made.side = native::make_side(spec);
    if (!made.check && made.rank == 0 && (!checks_itself || made.device_backend)) {
      log(LogLevel::warn,
          "check=off: ranks that disagree are not found before the "
          "backend is called, where they may hang or corrupt data");
    }
  };
  return group::make_group(std::move(parts), nullptr, where,
                           [&](group::Parts& made, const GroupSpec& spec) {
                             try {
                               add_backends(made, spec);
                             } catch (const Error& error) {
                               throw meeting.company->of_connection(error);
                             }
                           });
}

/// Without what only says that it is of init.
std::string_view text_of(const Error& failure) {
  std::string_view text = failure.what();
  for (const std::string_view begin : {"init: ", "init (", "init_process_group: "})
    if (text.starts_with(begin)) text.remove_prefix(text.find(": ") + 2);
  return text;
}

/// What this rank lacks is told to the others, who would wait for it: they may be on other hosts.
[[noreturn]] void give_up(const InitOptions& options, const Identity& identity,
                          const Config& config, const Error& lack) {
  if (identity.world_size > 1) {
    try {
      Protection protection(config);
      meet(options, identity, config, protection, &lack);
    } catch (const Error& error) {  // or nobody has come to be told
      if (!identity.is_rank_auto) set_log_rank(identity.rank);
      log(LogLevel::debug, fmt::format("on the way to tell the others: {}", error.what()));
    }
  }
  throw lack;
}

/// As every message it begins with the operation of who reads it, and its line.
Error of_init(const Error& failure, int rank, const Where& where) {
  ErrorContext context = failure.context();
  context.op = "init_process_group";
  context.call_site = name_of(where);
  if (context.rank < 0) context.rank = rank;
  const std::string who = context.rank < 0 ? "" : fmt::format(" (rank {})", context.rank);
  const std::string site = context.call_site.empty() ? "" : " at " + context.call_site;
  const std::string told = fmt::format("{}{}{}: {}", context.op, who, site, text_of(failure));
  return Error(failure.code(), told, std::move(context));
}

/// Without asking CUDA, which would take long and forbid to fork.
SeenDevices see_devices(const Config& config, const Environment& environment) {
  const std::string* const visible = device::visible_list(environment);
  const std::string& library = config.text(Setting::cuda_library);
  SeenDevices seen;
  if (!device::Cuda::seems_usable(library, visible)) {
    return seen;
  }
  seen.count = std::max(1, static_cast<int>(device::visible_devices(visible).size()));
  struct utsname name = {};
  seen.host = ::uname(&name) == 0 ? name.nodename : "?";
  seen.list = visible == nullptr ? "all" : *visible;
  try {
    seen.local_ranks = rendezvous::local_place(environment).world_size;
  } catch (const Error&) {  // the launcher does not say
    seen.local_ranks = 0;
  }
  return seen;
}

/// `*rank`: once it is known.
ProcessGroup init(const InitOptions& options, const Where& where, int* rank) {
  control::Process::refuse_in_child();  // before it can claim its parent's rank
  net::hold_standard_descriptors();     // before there is a socket that a print would reach
  hold_memory_reserve();
  spawning::refuse_before_call();
  Environment environment = read_environment();
  // Before anything can throw: a rank that does not catch ends with one line and code 1.
  if (environment.contains("TUTTI_AGENT")) install_last_words(environment);
  if (const RankThread* const thread = this_rank_thread()) {
    environment = spawning::rank_variables(std::move(environment), thread->rank, thread->world_size,
                                           thread->agent);
  }
  const Settings settings = settings_of(options);
  const Config config(settings, environment);
  check_timeout(config.duration(Setting::timeout));
  Identity identity = find_identity(options, settings, config, environment);
  if (!identity.is_rank_auto) *rank = identity.rank;
  SeenDevices devices = see_devices(config, environment);
  Backends backends;
  try {
    port_range(config);
    backends = find_backends(config, identity, devices.count > 0);
  } catch (const Error& lack) {
    give_up(options, identity, config, {lack.code(), std::string(text_of(lack)), lack.context()});
  }
  if (!identity.is_rank_auto) set_log_rank(identity.rank);
  if (settings.contains("log")) set_log_level(config.log_level());  // of the process
  log_beginning(identity, environment);
  Protection protection(config);
  const Meeting meeting = meet(options, identity, config, protection, nullptr);
  identity.rank = *rank = meeting.rank;
  show_agent(meeting, identity);
  devices.has_nccl = backends.automatic != nullptr;
  if (devices.local_ranks == 0) devices.local_ranks = identity.world_size;
  ProcessGroup world = make_world(identity, config, meeting, backends, protection, devices, where);
  log_world(world, identity, meeting);
  return world;
}

}  // namespace

ProcessGroup init_process_group(const InitOptions& options, Where where) {
  int rank = -1;
  try {
    return init(options, where, &rank);
  } catch (const Error& failure) {
    throw of_init(failure, rank, where);
  }
}

int local_rank() { return rendezvous::local_place(read_environment()).rank; }
int local_world_size() { return rendezvous::local_place(read_environment()).world_size; }

int local_device() {
  const Environment environment = read_environment();
  const std::string* const visible = device::visible_list(environment);
  const int devices = static_cast<int>(device::visible_devices(visible).size());
  return devices < 2 ? 0 : rendezvous::local_place(environment).rank % devices;
}

}  // namespace tutti
