#include "ddp/torch/registered.h"

#include <memory>
#include <string>

#include "tutti/torch/data_parallel.h"

namespace tutti::ddp {
namespace {

using torch::nn::Module;
using Parameters = torch::OrderedDict<std::string, at::Tensor>;
using Children = torch::OrderedDict<std::string, std::shared_ptr<Module>>;

const Parameters& parameters_of(const Module& module);
const Children& children_of(const Module& module);

/// A module gives out copies of these only. An explicit instantiation may name what is private.
template <auto ParametersOf, auto ChildrenOf>
struct Reveal {
  friend const Parameters& parameters_of(const Module& module) { return module.*ParametersOf; }
  friend const Children& children_of(const Module& module) { return module.*ChildrenOf; }
};
template struct Reveal<&Module::parameters_, &Module::children_>;

/// Calls `visit(tensor)`, in the order of named_parameters(), until it returns false.
template <class Visit>
bool visit_all(const Module& module, Visit&& visit) {
  for (const auto& item : parameters_of(module)) {
    if (!visit(item.value())) return false;
  }
  for (const auto& item : children_of(module)) {
    if (!visit_all(*item.value(), visit)) return false;
  }
  return true;
}

}  // namespace

std::vector<Registered> registered(const Module& module) {
  std::vector<Registered> all;
  visit_all(module, [&](const at::Tensor& tensor) {
    all.push_back({tensor, tensor.requires_grad()});
    return true;
  });
  return all;
}

bool is_as(const Module& module, const std::vector<Registered>& seen) {
  std::size_t next = 0;
  const bool all_equal = visit_all(module, [&](const at::Tensor& tensor) {
    if (next == seen.size() || !tensor.is_same(seen[next].tensor)) return false;
    return tensor.requires_grad() == seen[next++].requires_grad;
  });
  return all_equal && next == seen.size();
}

const Module& unwrapped(const Module& module) {
  if (dynamic_cast<const detail::DataParallel*>(&module) == nullptr) return module;
  return unwrapped(*children_of(module)["module"]);
}

}  // namespace tutti::ddp
