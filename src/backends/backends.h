// Which backends the setting `backend` means.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "base/config.h"
#include "rendezvous/identity.h"
#include "tutti/backend.h"

namespace tutti {

/// native, and NCCL for device memory where every rank can have it.
inline constexpr std::string_view kAutomatic = "automatic";

using MakeBackend = std::function<std::unique_ptr<Backend>(const GroupSpec& spec)>;

/// What a world is made over.
struct Backends {
  MakeBackend for_host;
  MakeBackend for_device;  ///< empty: device memory is staged
  /// What `for_device` becomes if every rank can have it.
  MakeBackend automatic;
};

/// Errors  kInvalidArgument: the setting names no backend. kUnsupported: it cannot be used here;
///         says why.
Backends find_backends(const Config& config, const rendezvous::Identity& identity,
                       bool sees_devices);

}  // namespace tutti
