// The communication hook that a model has been given.
#pragma once

#include <string>

#include "tutti/torch/communication_hook.h"

namespace tutti::ddp {

struct NamedHook {
  std::string name;
  CommunicationHook function;  ///< empty: none, an all_reduce
};

/// Starts what makes the bucket's gradients their mean.
/// Errors    What the hook throws, if it is an Error; else kInvalidArgument, naming hook and
///           bucket, which a hook that returns no Work is as well.
Work start_mean(const NamedHook& hook, const GradientBucket& bucket, ProcessGroup& group);

/// Compares the names over all ranks of the group; `owner` is the wrapper's.
/// Errors    kCollectiveMismatch with both names, the same on every rank; the group stays usable.
void check_same_hook(ProcessGroup& group, const std::string& owner, const NamedHook& hook,
                     Where where);

}  // namespace tutti::ddp
