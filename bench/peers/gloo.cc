// Gloo as a peer: ring, bcube and the older halving-doubling, over TCP: on the loopback interface
// (it has no other transport on one host) unless another interface is named.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <map>
#include <memory>

#include "worker.h"

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7) return 2;  // PIPES LARGEST RANK RANKS STORE [INTERFACE]
  Peer peer;
  peer.rank = std::atoi(argv[3]);
  peer.ranks = std::atoi(argv[4]);
  gloo::rendezvous::FileStore store(argv[5]);
  gloo::transport::tcp::attr interface;
  (argc == 7 ? interface.iface : interface.hostname) = argc == 7 ? argv[6] : "127.0.0.1";
  auto context = std::make_shared<gloo::rendezvous::Context>(peer.rank, peer.ranks);
  auto device = gloo::transport::tcp::CreateDevice(interface);
  context->connectFullMesh(store, device);

  using Doubling = gloo::AllreduceHalvingDoubling<float>;
  std::map<std::size_t, std::unique_ptr<Doubling>> doublings;  // these are bound to a buffer
  peer.all_reduce = [&](float* data, std::size_t count, int algorithm) {
    if (algorithm == 2) {
      auto& doubling = doublings[count];
      if (!doubling) {
        doubling =
            std::make_unique<Doubling>(context, std::vector<float*>{data}, static_cast<int>(count));
      }
      doubling->run();
      return;
    }
    gloo::AllreduceOptions options(context);
    options.setOutput(data, count);
    using Reduce = void (*)(void*, const void*, const void*, std::size_t);
    options.setReduceFunction(static_cast<Reduce>(&gloo::sum<float>));
    options.setAlgorithm(algorithm == 0 ? gloo::AllreduceOptions::Algorithm::RING
                                        : gloo::AllreduceOptions::Algorithm::BCUBE);
    gloo::allreduce(options);
  };
  peer.barrier = [&] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  };
  peer.send = [&](const float* data, std::size_t count, int to) {
    auto message = context->createUnboundBuffer(const_cast<float*>(data), count * sizeof *data);
    message->send(to, 0);
    message->waitSend();
  };
  peer.recv = [&](float* data, std::size_t count, int from) {
    auto message = context->createUnboundBuffer(data, count * sizeof *data);
    message->recv(from, 0);
    message->waitRecv();
  };
  return serve(peer, argv[1], std::strtoull(argv[2], nullptr, 10));
}
