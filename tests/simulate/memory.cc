// In place of control/memory/hand_over.cc, which passes descriptors through sockets: rank 0 takes
// those of all and gives them to everybody.
#include <fmt/format.h>

#include <functional>
#include <vector>

#include "control/memory/hand_over.h"
#include "simulate/kernel.h"
#include "tutti/error.h"

namespace tutti::control {

using simulate::Kernel;

namespace {

class HandOver {
 public:
  HandOver(Store& store, std::string_view prefix, int group_size, Deadline deadline,
           const net::Interrupt& interrupt)
      : store_(store),
        prefix_(prefix),
        group_size_(group_size),
        deadline_(deadline),
        interrupt_(interrupt) {
    deadline_.start(kernel_.now());
  }

  void give(int rank, int memory) {
    const auto most = std::uint64_t{1} << kernel_.random().below(11);
    kernel_.block(nullptr, kernel_.now() + std::chrono::microseconds(kernel_.random().below(most)));
    store_.set(key("", rank), std::to_string(memory));
  }

  void collect() {
    store_.set(key("host"), std::to_string(kernel_.self().id));
    // Its connections end with it.
    try {
      wait([this] { return missing().empty(); }, true);
    } catch (...) {
      store_.set(key("end"), "failed");
      throw;
    }
    store_.set(key("end"), "given");
  }

  void await_given() {
    wait([this] { return store_.try_get(key("host")).has_value(); }, true);
    const int host = std::stoi(*store_.try_get(key("host")));
    wait([&] { return store_.try_get(key("end")) || kernel_.process(host).dead; }, false);
    if (store_.try_get(key("end")) == "given") return;
    ErrorContext context;
    context.culprits = {0};
    throw Error(ErrorCode::kPeerLost, "rank 0 ended the hand-over of memory", std::move(context));
  }

  void take_all(const TakeMemory& take) {
    for (int member = 0; member < group_size_; ++member) {
      kernel_.step();
      take(member, net::Fd(std::stoi(*store_.try_get(key("", member)))));
    }
  }

 private:
  std::string key(std::string_view what, int rank = 0) const {
    return fmt::format("{}/{}{}", prefix_, what, rank);
  }

  std::vector<int> missing() {
    std::vector<int> ranks;
    for (int member = 0; member < group_size_; ++member)
      if (!store_.try_get(key("", member))) ranks.push_back(member);
    return ranks;
  }

  void wait(const std::function<bool()>& is_over, bool ends_with_an_abort) {
    while (kernel_.step(), !is_over()) {
      if (ends_with_an_abort && interrupt_.abort_word != nullptr &&
          interrupt_.abort_word->load() != 0)
        throw Error(ErrorCode::kAborted, "handing over memory was interrupted by an abort");
      if (deadline_.expired(kernel_.now()))
        throw Error(ErrorCode::kTimeout, "the memory of others did not come before the deadline",
                    {.culprits = missing()});
      kernel_.block(nullptr, kernel_.now() + std::chrono::microseconds(200));
    }
  }

  Kernel& kernel_ = *Kernel::running();
  Store& store_;
  const std::string prefix_;
  const int group_size_;
  Deadline deadline_;
  const net::Interrupt& interrupt_;
};

}  // namespace

void hand_over(Store& store, std::string_view prefix, int rank, int group_size, int own_memory,
               Deadline deadline, const TakeMemory& take, const net::Interrupt& interrupt,
               std::span<const int>) {
  HandOver hand_over(store, prefix, group_size, deadline, interrupt);
  hand_over.give(rank, own_memory);
  if (rank == 0) {
    hand_over.collect();
  } else {
    hand_over.await_given();
  }
  hand_over.take_all(take);
}

std::vector<net::Fd> hand_over(Store&, std::string_view, int, int, int, Deadline,
                               const net::Interrupt&, std::span<const int>) {
  throw Error(ErrorCode::kUnsupported, "simulated ranks find their board without a store");
}

}  // namespace tutti::control
