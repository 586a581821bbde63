// The collectives, over Gloo's point-to-point messages. Its own collectives are not used: nobody
// can be woken out of them (mesh.h), and their reductions have an order of their own.
//
// What only *moves* is one round, in which every rank posts all that it sends and receives. What
// *reduces* is cut into *slices*. Each has an *owner*, who receives it from all ranks, reduces it
// with our kernels in the canonical order (docs/numerics.md), and hands the result to whoever is to
// have it. Small slices travel as mail; large ones in *pieces*, two under way at a time, so that
// one is reduced while the next one arrives. A small buffer stays *whole*: everybody who is to have
// the result receives the inputs of all.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "plugins/gloo/exchange.h"
#include "plugins/gloo/mailbox.h"
#include "plugins/gloo/mesh.h"

namespace tutti::gloo_backend {

/// Threads   One operation at a time.
class Collectives {
 public:
  explicit Collectives(Mesh& mesh) : mesh_(mesh), mailbox_(mesh) {}

  /// Errors    Those of Mesh::run; kUnsupported for what is no collective known here.
  void run(const Request& request);

 private:
  class Slices;

  void broadcast(const Request& request);
  void barrier(const Request& request);
  void all_to_all(const Request& request);
  /// Sends ranges `to` of the input to the ranks, and receives ranges `from` of the output.
  void move(const Request& request, const void* input, const std::vector<Range>& to,
            const std::vector<Range>& from);
  void reduce(const Request& request);
  /// Every rank receives the whole inputs of those below it.
  void scan(const Request& request);
  /// `hand_out`: the results, to whoever is to have them.
  void reduce_by_mail(const Request& request, const std::vector<Range>& slices, bool hand_out);
  void reduce_slices(const Request& request, const std::vector<Range>& slices);

  std::size_t ranks() const noexcept { return static_cast<std::size_t>(mesh_.ranks()); }
  /// At least so many bytes, aligned; what is in them does not outlive the operation.
  std::byte* scratch(std::size_t byte_count);

  Mesh& mesh_;
  Mailbox mailbox_;
  std::shared_ptr<void> scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace tutti::gloo_backend
