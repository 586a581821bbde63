// What the program of a rank is told, in words that two runs of one plan can be compared by.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tutti::simulate {

struct Told {
  /// How it ended: "well", or a code and culprits, by their ranks in the world: "kPeerLost [0 3]".
  struct Call {
    std::size_t group = 0;
    std::string ending;
    bool operator==(const Call&) const = default;
  };
  std::map<std::string, Call> calls;  ///< "step 5", "make of group 1", "close of group 1"
  /// The same of groups that it was in, by number in the plan; "left": neither closed nor failed.
  std::map<std::size_t, std::string> groups;
  std::optional<std::size_t> reached;  ///< the step of the plan that it came to last
  bool has_ended = false;              ///< its process has not died before
};

/// Calls and groups; null if it has not ended.
nlohmann::json to_json(const Told& told);
Told told_from(const nlohmann::json& json);

/// What a real rank was told otherwise than simulated ones always are. Where its group has failed,
/// a call that has ended well in the simulation may end with that failure, and later ones may be
/// left out: nothing but time decides it.
struct Difference {
  std::string what;  ///< "group 1", or a call
  bool is_call = false;
  std::string text;
};
std::vector<Difference> differences(const Told& simulated, const Told& real);

}  // namespace tutti::simulate
