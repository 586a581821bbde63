#include "ddp/static_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tutti::ddp {

void StaticGraph::begin() {
  std::fill(now_.begin(), now_.end(), 0);
  std::fill(last_.begin(), last_.end(), 0);
  counted_ = 0;
}

StaticGraph::Gradient StaticGraph::count(std::size_t parameter) {
  last_[parameter] = ++counted_;
  const std::size_t times = ++now_[parameter];
  if (!is_known() || times < learned_[parameter]) return Gradient::not_last;
  return times == learned_[parameter] ? Gradient::last : Gradient::too_many;
}

std::vector<std::size_t> StaticGraph::by_last_gradient() const {
  std::vector<std::size_t> order(last_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [this](std::size_t a, std::size_t b) { return last_[a] < last_[b]; });
  return order;
}

std::vector<std::string> StaticGraph::missing(std::span<const std::string> names) const {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < learned_.size(); ++i) {
    if (now_[i] >= learned_[i]) continue;
    all.push_back(fmt::format("{} ({} instead of {})", names[i], now_[i], learned_[i]));
  }
  return all;
}

}  // namespace tutti::ddp
