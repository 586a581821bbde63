#include "plugins/gloo/exchange.h"

namespace tutti::gloo_backend {

Exchange::Exchange(Mesh& mesh, std::uint64_t slot, std::chrono::milliseconds timeout, Bytes input,
                   Bytes output)
    : mesh_(mesh), slot_(slot), timeout_(timeout) {
  if (mesh.ranks() == 1) return;
  input_ = mesh.context()->createUnboundBuffer(input.data, input.byte_count);
  output_ = mesh.context()->createUnboundBuffer(output.data, output.byte_count);
}

void Exchange::send(int to, Range part) {
  if (to == mesh_.rank() || part.byte_count == 0) return;
  input_->send(to, slot_, part.offset, part.byte_count);
  ++sends_;
}

void Exchange::recv(int from, Range part) {
  if (from == mesh_.rank() || part.byte_count == 0) return;
  output_->recv(from, slot_, part.offset, part.byte_count);
  ++recvs_;
}

void Exchange::wait_for_sends() {
  for (; sends_ > 0; --sends_) mesh_.wait_for_send(*input_, timeout_);
}

void Exchange::wait_for_recvs() {
  for (; recvs_ > 0; --recvs_) mesh_.wait_for_recv(*output_, timeout_);
}

}  // namespace tutti::gloo_backend
