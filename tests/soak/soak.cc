#include "soak/soak.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "tutti/version.h"

namespace tutti::soak {

Words read_words(int argc, char** argv) {
  Words words;
  words.seed = std::random_device{}();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--rounds") {
      words.rounds = std::atoi(value.c_str());
    } else if (name == "--seed") {
      words.seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "--scale") {
      words.scale = std::atof(value.c_str());
    } else if (name == "--resident-gib") {
      words.resident_gib = std::atof(value.c_str());
    } else if (name == "--hosts") {
      words.hosts = std::atoi(value.c_str());
    } else if (name == "--only") {
      words.only = value;
    } else if (name == "--out") {
      words.out = value;
    } else if (name == "--as" && value == "rank") {
      words.as_rank = true;
    } else {
      argc = 0;  // unknown
    }
  }
  if (argc % 2 != 1 || words.rounds < 1 || words.scale <= 0 || words.hosts < 1) {
    std::fputs(
        "usage: [--rounds N] [--seed S] [--scale X] [--resident-gib G] [--hosts N] "
        "[--only SERIES] [--out FILE] [--as rank]\n",
        stderr);
    std::exit(2);
  }
  return words;
}

void Progress::advance(const std::string& what, int failed) {
  ++done_;
  const Clock::time_point now = Clock::now();
  if (now - said_ < std::chrono::seconds(5) && done_ < rounds_) return;
  said_ = now;
  const double spent = std::chrono::duration<double>(now - begin_).count();
  fmt::print(stderr, "{}: {} of {} ({}), {} failed, {:.0f} s left\n", name_, done_, rounds_, what,
             failed, spent / done_ * (rounds_ - done_));
}

double Figures::percentile(double share) const {
  if (samples.empty()) return 0;
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  const auto index = static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5);
  return sorted[index];
}

std::string Figures::histogram_json() const {
  nlohmann::ordered_json bins = nlohmann::ordered_json::object();
  double below = 0;
  for (const double bound :
       {1., 2., 5., 10., 20., 30., 40., 50., 60., 80., 100., 200., 500., 1000., 1e300}) {
    const auto count = std::count_if(samples.begin(), samples.end(), [&](double sample) {
      return sample > below && sample <= bound;
    });
    bins[bound < 1e300 ? fmt::format("<={:g} ms", bound) : "more"] = count;
    below = bound;
  }
  return bins.dump();
}

std::string Figures::summary() const {
  return fmt::format("n={} p50 {:.1f} p99 {:.1f} max {:.1f} ms", samples.size(), percentile(0.5),
                     percentile(0.99), percentile(1));
}

std::set<std::string> Leftovers::entries(const std::string& folder) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, ignored)) {
    names.insert(entry.path());
  }
  return names;
}

Leftovers::Leftovers() {
  // A /dev/shm of our own where we may have one: other programs put things into everybody's.
  if (::unshare(CLONE_NEWNS) == 0 &&
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0) {
    ::mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr);
  }
  shm_ = entries("/dev/shm");
  folder_ = (std::filesystem::temp_directory_path() / "tutti_soak_XXXXXX").string();
  if (::mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("cannot make " + folder_);
  ::setenv("TMPDIR", folder_.c_str(), 1);
}

Leftovers::~Leftovers() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::vector<std::string> Leftovers::found(const std::string& address) const {
  std::vector<std::string> left;
  for (const std::string& name : entries(folder_)) left.push_back(name);
  for (const std::string& name : entries("/dev/shm")) {
    if (!shm_.contains(name)) left.push_back(name);
  }
  std::ifstream sockets("/proc/net/unix");
  const std::string all((std::istreambuf_iterator<char>(sockets)), {});
  if (!address.empty() && all.find(address) != std::string::npos) left.push_back(address);
  return left;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name"))
      return line.substr(std::min(line.find(": ") + 2, line.size()));
  }
  return "unknown";
}

void write_evidence(const Words& words, const std::string& name,
                    const std::vector<std::pair<std::string, std::string>>& fields) {
  if (words.out.empty()) return;
  nlohmann::ordered_json evidence = {
      {"soak", name},         {"commit", build_info().commit},
      {"cpu", cpu_name()},    {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
      {"seed", words.seed},   {"rounds", words.rounds},
      {"scale", words.scale}, {"hosts", words.hosts}};
  for (const auto& [field, text] : fields) evidence[field] = nlohmann::ordered_json::parse(text);
  std::ofstream(words.out) << evidence.dump(2) << '\n';
}

}  // namespace tutti::soak
