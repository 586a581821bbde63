// Memories of the simulated processes: all lie in this one. In place of
// control/memory/hand_over.cc, which passes descriptors through sockets; pages come when they are
// touched.
#include "control/memory/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "control/memory/hand_over.h"
#include "net/system_error.h"
#include "simulate/kernel.h"
#include "tutti/error.h"

namespace tutti::control {

using simulate::Kernel;

void hand_over(Store& store, std::string_view prefix, int rank, int group_size, int own_memory,
               Deadline deadline, const TakeMemory& take, const net::Interrupt& interrupt) {
  Kernel& kernel = *Kernel::running();
  deadline.start(kernel.now());
  const auto key_of = [&](int of) { return fmt::format("{}/{}", prefix, of); };
  const int own = ::fcntl(own_memory, F_DUPFD_CLOEXEC, 0);
  kernel.memories.push_back(own);
  kernel.step();
  store.set(key_of(rank), std::to_string(own));
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
    take(member, net::Fd(::fcntl(std::stoi(*memory), F_DUPFD_CLOEXEC, 0)));
  }
}

std::vector<net::Fd> hand_over(Store&, std::string_view, int, int, int, Deadline,
                               const net::Interrupt&) {
  throw Error(ErrorCode::kUnsupported, "simulated ranks find their board without a store");
}

}  // namespace tutti::control

namespace tutti::simulate {

using control::Mapping;

std::shared_ptr<Mapping> real_map(const net::Fd& memory, std::size_t byte_count, bool writable) asm(
    "__real__ZN5tutti7control10map_sharedERKNS_3net2FdEmb");
std::shared_ptr<Mapping> map(const net::Fd& memory, std::size_t byte_count, bool writable) asm(
    "__wrap__ZN5tutti7control10map_sharedERKNS_3net2FdEmb");
std::shared_ptr<Mapping> map(const net::Fd& memory, std::size_t byte_count, bool writable) {
  std::shared_ptr<Mapping> mapping = real_map(memory, byte_count, writable);
  if (Kernel* const kernel = Kernel::running()) kernel->share(mapping->data(), byte_count);
  return mapping;
}

void reserve(const net::Fd& memory, std::size_t offset, std::size_t byte_count) asm(
    "__wrap__ZN5tutti7control14reserve_memoryERKNS_3net2FdEmm");
void reserve(const net::Fd&, std::size_t, std::size_t byte_count) {
  const Kernel* const kernel = Kernel::running();
  if (kernel == nullptr || !kernel->inside() || !kernel->self().has_no_memory) return;
  throw net::system_error(fmt::format("cannot reserve {} bytes of shared memory", byte_count),
                          ENOSPC);
}

}  // namespace tutti::simulate
