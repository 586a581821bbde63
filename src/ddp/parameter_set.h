// Which parameters a model has and which of them require a gradient, as one rank sees it.
//
// What a model *has* is agreed when it is wrapped and stays. The *set* is what of it requires a
// gradient; it may change from forward to forward, on all ranks together. Changes are put in words
// that name the parameters, for the ranks that have not made them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tutti::ddp {

/// By parameter: 1 if it is in.
using ParameterSet = std::vector<std::uint8_t>;

/// A parameter under its name; `tensor` tells one tensor from another.
struct NamedParameter {
  std::string name;
  const void* tensor = nullptr;
};

/// What a forward trains.
struct Trained {
  ParameterSet set;
  std::string refusal;  ///< what has become of the model that cannot be followed; usually ""
};
using TrainedPtr = std::shared_ptr<const Trained>;

std::size_t count_of(const ParameterSet& set);
/// `into` gets what is in `other` as well.
void add(ParameterSet& into, const ParameterSet& other);
/// Whether everything of `part` is in `whole`.
bool contains(const ParameterSet& whole, const ParameterSet& part);

std::uint64_t digest(const ParameterSet& set, std::uint64_t seed = 0);

/// "a.weight, a.bias and 3 more", in at most `most` bytes where one name is not longer.
std::string listed(std::span<const std::string> names, std::size_t most);

/// "a.weight, a.bias are trained no more; b.weight is trained from now on"; "" if nothing changed.
std::string change_of(std::span<const std::string> names, const ParameterSet& before,
                      const ParameterSet& after);

/// "c.weight was added; a.weight was removed; b.bias was replaced"; "" if it has what it had.
std::string change_of(std::span<const NamedParameter> before,
                      std::span<const NamedParameter> after);

}  // namespace tutti::ddp
