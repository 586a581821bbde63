// What the soaks share: their words, progress with the time left, figures, the file they write.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace tutti::soak {

struct Words {
  int rounds = 100;
  std::uint64_t seed = 0;  ///< random unless given
  double scale = 1;        ///< promises are judged at this many times their figure
  double resident_gib = 4;
  int hosts = 1;         ///< on which the ranks of a world take turns
  std::string only;      ///< one series; empty: all
  std::string out;       ///< JSON goes here; empty: nowhere
  bool as_rank = false;  ///< this process is one rank of the soak's world, started by hand
};
/// Reads --rounds --seed --scale --resident-gib --hosts --only --out --as; exits with 2 on anything
/// else.
Words read_words(int argc, char** argv);

/// One line now and then: "kills: 37 of 200 (resident), 0 failed, 41 s left".
class Progress {
 public:
  Progress(std::string name, int rounds) : name_(std::move(name)), rounds_(rounds) {}
  void advance(const std::string& what, int failed);

 private:
  using Clock = std::chrono::steady_clock;
  std::string name_;
  int rounds_;
  int done_ = 0;
  Clock::time_point begin_ = Clock::now(), said_ = {};
};

/// Durations in ms.
struct Figures {
  std::vector<double> samples;
  double percentile(double share) const;  ///< 0.99; 0 when there are none
  /// {"<= 1 ms": 3, ...}: upper bounds and counts, as JSON.
  std::string histogram_json() const;
  std::string summary() const;  ///< "n=297 p50 24.1 p99 45.0 max 61.2 ms"
};

/// What a job could leave: entries of /dev/shm and of our own TMPDIR, abstract sockets of ours.
class Leftovers {
 public:
  /// Makes a folder and sets TMPDIR to it. Root also gets a /dev/shm that nobody else sees.
  Leftovers();
  ~Leftovers();
  /// What is there now and was not at the beginning; empty: nothing. `address` is the job's agent.
  std::vector<std::string> found(const std::string& address) const;

 private:
  static std::set<std::string> entries(const std::string& folder);
  std::string folder_;
  std::set<std::string> shm_;
};

std::string cpu_name();
/// Writes {commit, cpu, seed, rounds, ...} with `fields` (JSON text by name) to words.out.
void write_evidence(const Words& words, const std::string& name,
                    const std::vector<std::pair<std::string, std::string>>& fields);

}  // namespace tutti::soak
