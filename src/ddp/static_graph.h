// How often each parameter gets a gradient in one backward, where that never changes.
//
// The first backward is *learned*: each of its gradients is counted, and only its end says which
// was a parameter's last. Later backwards must repeat it, and so say at once, with each gradient,
// whether more will come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tutti::ddp {

/// Threads   One at a time.
class StaticGraph {
 public:
  explicit StaticGraph(std::size_t parameter_count)
      : now_(parameter_count), last_(parameter_count) {}

  /// Whether a backward has been learned.
  bool is_known() const { return !learned_.empty(); }
  void begin();  ///< a backward does
  void forget() { learned_.clear(); }

  enum class Gradient { last, not_last, too_many };
  /// One more gradient of `parameter`. `not_last`: more of them will come, or may.
  Gradient count(std::size_t parameter);
  /// Whether it is known that `parameter` gets none.
  bool is_unused(std::size_t parameter) const { return is_known() && learned_[parameter] == 0; }

  /// So often since begin, and in the backward that was learned.
  std::size_t now(std::size_t parameter) const { return now_[parameter]; }
  std::size_t learned(std::size_t parameter) const { return learned_[parameter]; }
  /// All parameters, those without gradient first, then by when each got its last one.
  std::vector<std::size_t> by_last_gradient() const;
  /// Later backwards must be as this one.
  void learn() { learned_ = now_; }

  /// "a.weight (1 instead of 2), b.bias (0 instead of 1)": of which this backward has given fewer.
  std::vector<std::string> missing(std::span<const std::string> names) const;

 private:
  std::vector<std::size_t> now_, learned_;
  std::vector<std::size_t> last_;  // number of the last gradient, from 1; 0: none
  std::size_t counted_ = 0;
};

}  // namespace tutti::ddp
