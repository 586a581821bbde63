// A store of torch's as Tutti's: where the ranks of a group meet.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tutti/store.h"

namespace tutti::python {

/// A connection of its own where `base` has one: a call that waits holds up all others of a
/// TCPStore.
std::shared_ptr<Store> adapt(const c10::intrusive_ptr<c10d::Store>& base);

}  // namespace tutti::python
