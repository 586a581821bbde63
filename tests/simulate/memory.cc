// In place of control/memory/hand_over.cc, which passes descriptors through sockets.
#include <fmt/format.h>

#include "control/memory/hand_over.h"
#include "simulate/kernel.h"
#include "tutti/error.h"

namespace tutti::control {

using simulate::Kernel;

void hand_over(Store& store, std::string_view prefix, int rank, int group_size, int own_memory,
               Deadline deadline, const TakeMemory& take, const net::Interrupt& interrupt) {
  Kernel& kernel = *Kernel::running();
  deadline.start(kernel.now());
  const auto key_of = [&](int of) { return fmt::format("{}/{}", prefix, of); };
  kernel.step();
  store.set(key_of(rank), std::to_string(own_memory));
  for (int member = 0; member < group_size; ++member) {
    std::optional<std::string> memory;
    const auto throw_if_aborted = [&] {
      if (interrupt.abort_word != nullptr && interrupt.abort_word->load() != 0)
        throw Error(ErrorCode::kAborted, "handing over memory was interrupted by an abort");
    };
    throw_if_aborted();
    while (!(memory = store.try_get(key_of(member)))) {
      throw_if_aborted();
      if (deadline.expired(kernel.now()))
        throw Error(ErrorCode::kTimeout, fmt::format("no memory from rank {}", member),
                    {.culprits = {member}});
      kernel.block(nullptr, kernel.now() + std::chrono::microseconds(200));
    }
    kernel.step();
    take(member, net::Fd(std::stoi(*memory)));
  }
}

std::vector<net::Fd> hand_over(Store&, std::string_view, int, int, int, Deadline,
                               const net::Interrupt&) {
  throw Error(ErrorCode::kUnsupported, "simulated ranks find their board without a store");
}

}  // namespace tutti::control
