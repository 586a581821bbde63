// The backend nccl: device memory, through NVIDIA's NCCL.
//
// Of each group the communicator is made by the first operation (communicator.h). ncclCommSplit is
// not used for groups of groups: all ranks of the parent would have to call it, and new_group is a
// call of the members.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/config.h"
#include "base/pages.h"
#include "device/cuda.h"
#include "device/visible.h"
#include "plugins/nccl/collectives.h"
#include "plugins/nccl/communicator.h"
#include "plugins/nccl/library.h"
#include "plugins/nccl/support.h"
#include "plugins/nccl/watch.h"

namespace tutti::nccl_backend {

namespace {

BackendInfo info_with(std::string version) {
  return {.name = "nccl", .version = std::move(version), .checks_itself = false, .threads = true};
}

class NcclBackend final : public Backend {
 public:
  NcclBackend(const GroupSpec& spec, std::shared_ptr<const Nccl> nccl, std::shared_ptr<Watch> watch)
      : nccl_(std::move(nccl)),
        watch_(std::move(watch)),
        communicator_(std::make_shared<Communicator>(spec, nccl_, watch_->list())),
        collectives_(*communicator_) {}
  ~NcclBackend() override {
    communicator_->forget_group();
    communicator_->fail({ErrorCode::kAborted, "the group was given up", {}, {}});
  }

  Support supports(const OpKey& key) const override { return support_of(key); }
  void run(const Request& request) override;
  Work start(Request request) override;
  std::unique_ptr<Backend> make_group(const GroupSpec& spec) override {
    return std::make_unique<NcclBackend>(spec, nccl_, watch_);
  }
  Memory allocate(std::size_t byte_count) override;
  void abort(const Cause& cause) noexcept override { communicator_->fail(cause); }
  void close(Deadline deadline) override { communicator_->close(deadline); }
  BackendInfo info() const override { return info_with(nccl_->version_text()); }

 private:
  const std::shared_ptr<const Nccl> nccl_;
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<Communicator> communicator_;
  Collectives collectives_;
};

void NcclBackend::run(const Request& request) {
  // Of uneven parts a rank sees its own only.
  if (request.count == 0 && !request.uneven) return;
  communicator_->prepare(request, communicator_);
  const device::Current current(communicator_->cuda(), communicator_->device());
  communicator_->begin(request);
  collectives_.run(request);
  communicator_->end(request);
}

Work NcclBackend::start(Request request) {
  throw Error(
      ErrorCode::kUnsupported,
      support_of({request.op, request.dtype, request.reduce.kind(), Device::Kind::cuda}).reason);
}

/// Of the host, where nothing of this backend needs any.
Memory NcclBackend::allocate(std::size_t byte_count) {
  return {allocate_pages(byte_count), byte_count};
}

/// Which NCCL would be used here, or why none can be. Asks the driver nothing: that takes long.
BackendInfo about() {
  std::string nccl_file, cuda_file;
  for (const SettingInfo& row : describe_settings()) {
    if (row.name == "nccl_library") nccl_file = row.value;
    if (row.name == "cuda_library") cuda_file = row.value;
  }
  const Environment environment = read_environment();
  const bool is_usable = device::Cuda::seems_usable(cuda_file, device::visible_list(environment));
  BackendInfo info = info_with("");
  try {
    info.version = Nccl::open(nccl_file)->version_text();
    if (!is_usable) {
      info.missing = fmt::format(
          "NCCL {} is here, and no device of CUDA that this process may use: "
          "see nvidia-smi and CUDA_VISIBLE_DEVICES",
          info.version);
    }
  } catch (const Error& error) {
    info.missing = error.what();
  }
  return info;
}

std::unique_ptr<Backend> make(const GroupSpec& spec) {
  return std::make_unique<NcclBackend>(spec, Nccl::open(spec.settings.at("nccl_library")),
                                       Watch::of_process());
}

}  // namespace

}  // namespace tutti::nccl_backend

TUTTI_BACKEND_PLUGIN(tutti::nccl_backend::make, tutti::nccl_backend::about)
