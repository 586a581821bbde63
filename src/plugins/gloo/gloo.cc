// The backend gloo: Gloo's TCP connections behind Tutti's interface.
#include <fmt/format.h>
#include <gloo/config.h>

#include <memory>
#include <utility>

#include "base/legality.h"
#include "base/log.h"
#include "base/pages.h"
#include "plugins/gloo/collectives.h"
#include "plugins/gloo/mesh.h"
#include "plugins/gloo/messages.h"

namespace tutti {

namespace gloo_backend {

namespace {

BackendInfo about() {
  return {.name = "gloo",
          .version =
              fmt::format("{}.{}.{}", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH),
          .checks_itself = false,
          .threads = true};
}

class GlooBackend final : public Backend {
 public:
  static std::unique_ptr<Backend> make(const GroupSpec& spec, GlooDevice device) {
    const SigpipeBlocked quiet;  // its parts post receives, and so write to peers that may be dead
    return std::unique_ptr<Backend>(new GlooBackend(spec, std::move(device)));
  }

  Support supports(const OpKey& key) const override {
    if (key.device != Device::Kind::cpu) {
      return {false, "the backend gloo moves host memory only; copy to the CPU first"};
    }
    const std::string_view why = why_illegal(key.op, key.dtype, key.reduce);
    return {why.empty(), std::string(why)};
  }
  void run(const Request& request) override {
    mesh_.run(request, [&] { collectives_.run(request); });
  }
  Work start(Request request) override { return messages_.start(std::move(request)); }
  std::unique_ptr<Backend> make_group(const GroupSpec& spec) override {
    return make(spec, mesh_.device());
  }
  Memory allocate(std::size_t byte_count) override {
    return {allocate_pages(byte_count), byte_count};
  }
  void abort(const Cause& cause) noexcept override { mesh_.fail(cause); }
  void close(Deadline) override {}  // nothing runs on by itself
  BackendInfo info() const override { return about(); }

 private:
  GlooBackend(const GroupSpec& spec, GlooDevice device)
      : mesh_(spec, std::move(device)), collectives_(mesh_), messages_(mesh_) {}

  Mesh mesh_;
  Collectives collectives_;
  Messages messages_;
};

std::unique_ptr<Backend> make(const GroupSpec& spec) {
  log(LogLevel::info,
      fmt::format("backend gloo: its sockets on {} are neither authenticated nor encrypted",
                  address_of(spec)));
  return GlooBackend::make(spec, make_device(spec));
}

}  // namespace

}  // namespace gloo_backend

}  // namespace tutti

TUTTI_BACKEND_PLUGIN(tutti::gloo_backend::make, tutti::gloo_backend::about)
