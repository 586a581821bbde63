#include "native/operation.h"

namespace tutti::native {

control::Description describe(const Request& request) noexcept {
  control::Description description;
  description.seq = request.seq;
  description.chain = request.chain;
  description.count = request.count;
  description.op = static_cast<std::uint8_t>(request.op);
  description.dtype = static_cast<std::uint8_t>(request.dtype);
  description.reduce = static_cast<std::uint8_t>(request.reduce.kind());
  description.root_or_peer = request.root_or_peer;
  return description;
}

void run_blocking(Operation& operation, const Request& request, control::Membership& membership) {
  StepPatience patience(membership, request, operation);
  switch (wait(membership.waiter(), patience, [&] { return operation.step(); })) {
    case WaitResult::ready:
      return;
    case WaitResult::aborted:
      membership.throw_cause(request);
    case WaitResult::gave_up:
      membership.throw_gave_up(request);
  }
}

}  // namespace tutti::native
