// Soak `faults`: a connection between two hosts breaks at a random byte, again and again.
//
// Four ranks on two hosts do some calls of every kind, with right results; a proxy before the door
// of one of them resets or ends a connection, holds it up, or changes a byte. A round whose byte
// does not come is repeated with another byte. Shown in every round: the job ends within its time,
// and it is unaffected or all ranks that are told name the same one, which is at an end of that
// connection; of a changed byte it is the end that has sent it, and at a level without tags it may
// be another rank of that end's host, of which its relay reports. Nobody takes a wrong result for a
// right one. Who is held up for a second is unaffected. A changed byte is an error if it is one of
// a header; a payload has TCP's checksum alone at this level of security, so there it may be a
// wrong result, which is counted and not judged. At level integrity it must not be one.
//
// The series `store_...` break the connection of one rank to the store where ranks meet, which is
// with rank 0, over TCP. It is over once the world is complete; who is told before that names one
// of its ends, of which neither can know more of the other.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "net/tcp.h"
#include "secret_file.h"
#include "soak/fault_proxy.h"
#include "soak/soak.h"
#include "tutti/init.h"
#include "tutti/log.h"
#include "tutti/test_kit.h"

namespace tutti::soak {
namespace {

using namespace std::chrono_literals;
using nlohmann::ordered_json;

constexpr int kRanks = 4;
const std::vector<int> kHosts = {0, 0, 1, 1};
constexpr int kWorldsAtATime = 4;
constexpr auto kDeadline = 40s;
/// Of init in the series of the store: a rank whose handshake was changed takes the store for
/// another program's, or for one of another version, and goes; then it is missing.
constexpr auto kTimeoutOfInit = 8s;
constexpr std::uint64_t kEndOfVersion = 12;  // of a handshake, behind its magic
constexpr std::uint64_t kFirstBytes = 3000;  // handshakes and reports
/// How much flows depends on the moment: so often another byte is drawn in place of one that does
/// not come.
constexpr int kDraws = 20;
constexpr const char* kNotStruck = "the byte did not come";

struct Series {
  std::string_view name;
  Harm harm;
  const char* level = "opportunistic";
  bool is_of_store = false;
};
constexpr std::array<Series, 8> kSeries{{{"reset", Harm::reset},
                                         {"end", Harm::end},
                                         {"delay", Harm::delay},
                                         {"garbage", Harm::garbage},
                                         {"integrity", Harm::garbage, "integrity"},
                                         {"store_reset", Harm::reset, "opportunistic", true},
                                         {"store_end", Harm::end, "opportunistic", true},
                                         {"store_integrity", Harm::garbage, "integrity", true}}};

struct WrongResult : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What the series of the store need.
struct NoAddress : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void expect(bool is_right, const char* what) {
  if (!is_right) throw WrongResult(fmt::format("{}: wrong result", what));
}

/// Calls of every kind; values are exact.
void work(ProcessGroup& world) {
  const int me = world.rank(), next = (me + 1) % kRanks, before = (me + kRanks - 1) % kRanks;
  for (const std::size_t count : {1u, 1000u, 60'000u}) {
    for (int i = 0; i < 4; ++i) {
      std::vector<double> sum(count, me + i);
      world.all_reduce(sum);
      expect(sum == std::vector<double>(count, 6 + 4 * i), "all_reduce");
      std::vector<double> shown(count, me);
      world.broadcast(shown, {.root = i});
      expect(shown == std::vector<double>(count, i), "broadcast");
      const std::vector<double> mine(count, me);
      std::vector<double> got(count);
      Work sent = world.send(mine, next, async);
      world.recv(got, before);
      sent.wait();
      expect(got == std::vector<double>(count, before), "messages");
      std::vector<double> all(count * kRanks);
      world.all_gather(mine, all);
      expect(all.front() == 0 && all.back() == kRanks - 1, "all_gather");
      world.barrier();
    }
  }
}

/// Where the harm is done.
struct Scene {
  const Series* series = nullptr;
  int behind = 0;  ///< the rank before whose door the proxy is, or between which and the store
  Fault fault;
};

/// At an address of this host that is not loopback, so that rank 0 listens there over TCP.
std::string free_address() {
  const std::string all = net::addresses_of_this_host();
  const auto any = net::TcpAddress::parse(all.substr(0, all.find(',')) + ":0");
  if (!any) throw NoAddress("this host has no IPv4 address but loopback: " + all);
  return net::TcpAddress::local(net::listen_tcp(*any).get()).text();
}

/// What has become of one rank, as JSON. `place`: a file, or for a series of the store an address.
std::string live(const test_kit::Rank& me, const Scene& scene, const std::string& place) {
  set_log_callback([](LogLevel, std::string_view) {});
  InitOptions init = me.init;
  const bool is_behind = me.rank == scene.behind;
  std::shared_ptr<DoorStore> store;
  std::optional<FaultProxy> before_store;
  if (scene.series->is_of_store) {
    ::unsetenv("LOCAL_WORLD_SIZE");  // the test kit says that all are on one host
    if (is_behind) before_store.emplace(place, scene.fault);
    init.store = nullptr;
    init.timeout = kTimeoutOfInit;
    init.init_method = "tcp://" + (is_behind ? before_store->address() : place);
  } else {
    store = std::make_shared<DoorStore>(make_file_store(place), is_behind ? scene.fault : Fault());
    init.store = store;
  }
  ordered_json told = {{"code", "right"}, {"culprits", ordered_json::array()}, {"text", ""}};
  try {
    ProcessGroup world = init_process_group(init);
    work(world);
    world.close();
  } catch (const Error& error) {
    told = {{"code", name_of(error.code())},
            {"culprits", error.context().culprits},
            {"text", error.what()}};
  } catch (const WrongResult& error) {
    told["code"] = "wrong";
    told["text"] = error.what();
  }
  const FaultProxy* const proxy = before_store ? &*before_store : store ? store->proxy() : nullptr;
  if (proxy != nullptr) {
    told["passed"] = {proxy->passed(false), proxy->passed(true)};
    told["struck"] = proxy->has_struck();
    told["caller"] = proxy->struck_caller();
  }
  return told.dump();
}

std::vector<ordered_json> run_world(const Scene& scene, const std::string& file) {
  const SecretFile secret("a secret of the soak faults");
  const std::string place = scene.series->is_of_store ? free_address() : file;
  InitOptions init;
  init.settings = {{"security", scene.series->level}, {"secret_file", secret.path()}};
  const auto outcomes = test_kit::collect_ranks(
      kRanks, [&](const test_kit::Rank& me) { return live(me, scene, place); },
      {.as = test_kit::As::processes, .deadline = kDeadline, .init = init, .hosts = kHosts});
  std::filesystem::remove(file);
  std::vector<ordered_json> told;
  for (const test_kit::Outcome& outcome : outcomes) {
    told.push_back(outcome.failure.empty()
                       ? ordered_json::parse(outcome.result)
                       : ordered_json{{"code", "none"}, {"text", outcome.failure}});
  }
  return told;
}

/// Those of a series, or all.
std::vector<const Series*> series_of(const std::string& only) {
  std::vector<const Series*> all;
  for (const Series& each : kSeries) {
    if (only.empty() || only == each.name) all.push_back(&each);
  }
  return all;
}

/// By rank behind the proxy and direction: bytes of an undisturbed job.
using Totals = std::array<std::array<std::uint64_t, 2>, kRanks>;
struct AllTotals {
  Totals of_doors{}, of_store{};
};

Scene draw(std::mt19937_64& random, int number, const AllTotals& totals,
           const std::vector<const Series*>& all) {
  Scene round;
  round.series = all[static_cast<std::size_t>(number) % all.size()];
  const bool is_of_store = round.series->is_of_store;  // rank 0 serves it
  round.behind = static_cast<int>(is_of_store ? 1 + random() % (kRanks - 1) : random() % kRanks);
  round.fault = {.harm = round.series->harm, .is_inward = random() % 2 == 0, .delay = 1s};
  const Totals& of_all = is_of_store ? totals.of_store : totals.of_doors;
  const auto& by_end = of_all[static_cast<std::size_t>(round.behind)];
  const std::uint64_t total = std::max<std::uint64_t>(1, by_end[round.fault.is_inward ? 1 : 0]);
  round.fault.offset = random() % (random() % 2 == 0 ? std::min(total, kFirstBytes) : total);
  return round;
}

/// One rank: an end of the connection, which `caller` had made; of a changed byte the end that has
/// sent it. Without tags what a relay reports of the ranks of its host may have been changed, so
/// there any rank of the sender's host may be named, or several. A caller of -1 had not said who it
/// is: it is on the other host.
bool may_be_named(const Scene& round, int caller, const std::vector<int>& named) {
  const auto host_of = [](int rank) { return kHosts[static_cast<std::size_t>(rank)]; };
  const bool is_changed = round.series->harm == Harm::garbage;
  const bool has_tags = std::string_view(round.series->level) == "integrity";
  const int sender_host = round.fault.is_inward ? 1 - host_of(round.behind) : host_of(round.behind);
  const auto may_be = [&](int rank) {
    if (is_changed && host_of(rank) != sender_host) return false;
    if (is_changed && !has_tags) return true;
    const bool is_caller = caller < 0 ? host_of(rank) != host_of(round.behind) : rank == caller;
    return rank == round.behind || is_caller;
  };
  return !named.empty() && (named.size() == 1 || (is_changed && !has_tags)) &&
         std::all_of(named.begin(), named.end(), may_be);
}

/// Of the store's connection, whose ends are rank 0 and the rank behind the proxy. They may name
/// each other; the others, who have it from the store, name the same one.
std::string judge_of_store(const Scene& scene, const std::vector<ordered_json>& told) {
  std::set<int> by_others;
  const auto code_of = [&](int rank) {
    return told[static_cast<std::size_t>(rank)]["code"].get<std::string>();
  };
  const auto named_by = [&](int rank) {
    return told[static_cast<std::size_t>(rank)]["culprits"].get<std::vector<int>>();
  };
  const std::string of_behind = code_of(scene.behind);
  const bool is_of_version = of_behind == "kUnsupported" && scene.fault.offset < kEndOfVersion;
  const bool found_no_store = scene.fault.harm == Harm::garbage &&
                              (of_behind == "kUnauthenticated" || is_of_version) &&
                              named_by(scene.behind).empty();
  for (int rank = 0; rank < kRanks; ++rank) {
    if (code_of(rank) == "right" || (rank == scene.behind && found_no_store)) continue;
    if (code_of(rank) == "kTimeout" && !found_no_store) return "told by a timeout";
    const std::vector<int> named = named_by(rank);
    if (named.size() != 1 || (named[0] != 0 && named[0] != scene.behind)) {
      return fmt::format("{} named, which is not at an end of the connection",
                         ordered_json(named).dump());
    }
    if (rank != 0 && rank != scene.behind) by_others.insert(named[0]);
  }
  return by_others.size() > 1 ? "not the same culprits everywhere" : "named";
}

/// "unaffected", "named", "wrong result" (of a changed byte), kNotStruck, or what must not be.
std::string judge(const Scene& round, const std::vector<ordered_json>& told) {
  const auto& proxied = told[static_cast<std::size_t>(round.behind)];
  std::set<std::string> codes;
  std::set<std::vector<int>> culprits;
  for (const ordered_json& rank : told) {
    const auto code = rank["code"].get<std::string>();
    codes.insert(code);
    if (code == "none") return "a rank was not told: " + rank["text"].get<std::string>();
    if (code != "right" && code != "wrong")
      culprits.insert(rank["culprits"].get<std::vector<int>>());
  }
  if (!proxied.value("struck", false)) {
    return codes == std::set<std::string>{"right"} ? kNotStruck : "undisturbed, and it failed";
  }
  if (codes == std::set<std::string>{"right"}) return "unaffected";
  const bool has_tags = std::string_view(round.series->level) == "integrity";
  if (round.series->harm == Harm::garbage && !has_tags && codes.contains("wrong"))
    return "wrong result";
  if (codes.contains("wrong")) return "a wrong result";
  if (codes.contains("kDeadlock")) return "a fault is called a deadlock";
  if (round.series->harm == Harm::delay) return "a job that was only held up has failed";
  if (round.series->is_of_store) return judge_of_store(round, told);
  if (culprits.size() > 1) return "not the same culprits everywhere";
  if (const std::vector<int>& named = *culprits.begin();
      !may_be_named(round, proxied["caller"].get<int>(), named))
    return fmt::format("{} named, which is not at an end of the connection: from {} to {}",
                       ordered_json(named).dump(), proxied["caller"].dump(), round.behind);
  return "named";
}

std::string described(const Scene& round, const std::vector<ordered_json>& told) {
  std::string text = fmt::format("{} at byte {} {} rank {}", round.series->name, round.fault.offset,
                                 round.fault.is_inward ? "to" : "from", round.behind);
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    text += fmt::format("\n    rank {}: {} {} {}", rank, told[rank]["code"].get<std::string>(),
                        told[rank].value("culprits", ordered_json()).dump(),
                        told[rank]["text"].get<std::string>());
  }
  return text;
}

/// One process's share of the rounds: a line {round, harm, found, ms, drawn, text} for each.
void run_share(const Words& words, int share, const AllTotals& totals, const std::string& folder,
               int out) {
  const std::vector<const Series*> all = series_of(words.only);
  for (int number = share; number < words.rounds; number += kWorldsAtATime) {
    std::mt19937_64 random(words.seed + static_cast<std::uint64_t>(number) * 0x9e3779b97f4a7c15u);
    ordered_json line;
    for (int drawn = 1; line.empty() || (line["found"] == kNotStruck && drawn <= kDraws); ++drawn) {
      const Scene round = draw(random, number, totals, all);
      const auto begin = std::chrono::steady_clock::now();
      const auto told = run_world(round, fmt::format("{}/{}", folder, number));
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      line = {{"round", number},
              {"harm", round.series->name},
              {"found", judge(round, told)},
              {"ms", took.count()},
              {"drawn", drawn},
              {"text", described(round, told)}};
    }
    const std::string text = line.dump() + "\n";
    if (::write(out, text.data(), text.size()) != static_cast<ssize_t>(text.size())) ::_exit(1);
  }
}

/// In jobs of that series without harm.
Totals undisturbed(const Series& series, const std::string& folder) {
  Totals totals{};
  for (int behind = series.is_of_store ? 1 : 0; behind < kRanks; ++behind) {
    const auto told = run_world({&series, behind, {}}, folder + "/undisturbed");
    for (const ordered_json& rank : told) {
      if (rank["code"] != "right")
        throw std::runtime_error("undisturbed: " + rank["text"].get<std::string>());
    }
    const auto passed = told[static_cast<std::size_t>(behind)]["passed"];
    totals[static_cast<std::size_t>(behind)] = {passed[0].get<std::uint64_t>(),
                                                passed[1].get<std::uint64_t>()};
  }
  return totals;
}

/// Lines of all shares, as they come.
template <class Take>
void read_lines(int in, const Take& take) {
  std::string pending;
  std::array<char, 4096> bytes;
  for (ssize_t count = 0; (count = ::read(in, bytes.data(), bytes.size())) > 0;) {
    pending.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = pending.find('\n')) != std::string::npos;) {
      take(ordered_json::parse(pending.substr(0, end)));
      pending.erase(0, end + 1);
    }
  }
}

int run(const Words& words) {
  if (series_of(words.only).empty()) {
    fmt::print(
        stderr,
        "faults: --only {}: reset, end, delay, garbage, integrity, store_reset, store_end or "
        "store_integrity\n",
        words.only);
    return 2;
  }
  fmt::print(stderr, "faults: seed {}\n", words.seed);
  const Leftovers leftovers;  // a TMPDIR of our own
  const std::string folder = std::filesystem::temp_directory_path();
  AllTotals totals;
  for (const Series* series : series_of(words.only)) {
    Totals& of_all = series->is_of_store ? totals.of_store : totals.of_doors;
    if (of_all == Totals{}) of_all = undisturbed(*series, folder);
  }
  int pipe[2];
  if (::pipe(pipe) != 0) return 2;
  for (int share = 0; share < kWorldsAtATime; ++share) {
    if (::fork() != 0) continue;
    ::close(pipe[0]);
    run_share(words, share, totals, folder, pipe[1]);
    ::_exit(0);
  }
  ::close(pipe[1]);
  Progress progress("faults", words.rounds);
  std::map<std::string, std::map<std::string, int>> found;
  std::map<std::string, Figures> took;
  std::map<std::string, int> drawn_anew;
  int failed = 0, done = 0;
  read_lines(pipe[0], [&](const ordered_json& line) {
    const auto what = line["found"].get<std::string>();
    took[line["harm"]].samples.push_back(line["ms"].get<double>());
    ++found[line["harm"]][what];
    drawn_anew[line["harm"]] += line["drawn"].get<int>() - 1;
    ++done;
    if (what != "unaffected" && what != "named" && what != "wrong result" && ++failed <= 20) {
      fmt::print(stderr, "faults: round {}: {}: {}\n", line["round"].get<int>(), what,
                 line["text"].get<std::string>());
    }
    progress.advance(line["harm"], failed);
  });
  while (::wait(nullptr) > 0) {
  }
  if (done != words.rounds) ++failed;
  fmt::print("faults: {} of {} rounds, {} wrong: {}\n", done, words.rounds, failed,
             ordered_json(found).dump());
  fmt::print("faults: drawn anew, since the byte did not come: {}\n",
             ordered_json(drawn_anew).dump());
  ordered_json times = ordered_json::object();
  for (const auto& [harm, figures] : took) {
    fmt::print("faults: {}: a job took {}\n", harm, figures.summary());
    times[harm] = {{"p50_ms", figures.percentile(0.5)}, {"max_ms", figures.percentile(1)}};
  }
  write_evidence(words, "faults",
                 {{"found", ordered_json(found).dump()},
                  {"drawn_anew", ordered_json(drawn_anew).dump()},
                  {"job_took", times.dump()},
                  {"wrong_rounds", std::to_string(failed)}});
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti::soak

int main(int argc, char** argv) {
  try {
    return tutti::soak::run(tutti::soak::read_words(argc, argv));
  } catch (const tutti::soak::NoAddress& reason) {
    fmt::print(stderr, "faults: not run: {}\n", reason.what());
    return 77;
  }
}
