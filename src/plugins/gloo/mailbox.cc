#include "plugins/gloo/mailbox.h"

#include "base/pages.h"
#include "plugins/gloo/slots.h"

namespace tutti::gloo_backend {

Mailbox::Mailbox(Mesh& mesh)
    : mesh_(mesh),
      box_bytes_(mesh.ranks() == 2 ? 1024 * 1024 : kMessageBytes),
      peers_(static_cast<std::size_t>(mesh.ranks() > 1 ? mesh.ranks() : 0)) {
  memory_ = allocate_pages(peers_.size() * 2 * box_bytes_);
  auto* at = static_cast<std::byte*>(memory_.get());
  for (int from = 0; from < static_cast<int>(peers_.size()); ++from) {
    if (from == mesh.rank()) continue;
    for (Box& box : peer(from).boxes) {
      box.buffer = mesh.context()->createUnboundBuffer(at, box_bytes_);
      post(from, box);
      at += box_bytes_;
    }
  }
}

void Mailbox::post(int from, Box& box) {
  if (box.posted) return;
  box.buffer->recv(from, kMailSlot);
  box.posted = true;
}

void Mailbox::expect(int from) { post(from, peer(from).box(1)); }

void Mailbox::send(int to, const void* data, std::size_t byte_count) {
  if (byte_count == 0) return;
  sends_.push_back(mesh_.context()->createUnboundBuffer(const_cast<void*>(data), byte_count));
  sends_.back()->send(to, kMailSlot);
}

const void* Mailbox::wait_for(int from, std::size_t byte_count, std::chrono::milliseconds timeout) {
  if (byte_count == 0) return nullptr;
  Box& box = peer(from).box(0);
  mesh_.wait_for_recv(*box.buffer, timeout);
  box.posted = false;
  ++peer(from).received;
  return box.buffer->ptr;
}

void Mailbox::wait_for_sends(std::chrono::milliseconds timeout) {
  for (const Buffer& send : sends_) mesh_.wait_for_send(*send, timeout);
  sends_.clear();
}

}  // namespace tutti::gloo_backend
