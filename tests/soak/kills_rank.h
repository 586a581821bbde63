// A rank of the soak `kills`: works until one of the others is killed, then says when it knew.
//
// PROGRAM WORKLOAD VICTIM RESIDENT_MIB HELPER: the victim holds RESIDENT_MIB of memory; with HELPER
// it has a live forked child.
#pragma once

#include <functional>
#include <string>

#include "tutti/process_group.h"

namespace tutti::soak {

/// Joins the world and repeats what `make_step` returns for (world, WORKLOAD) until it throws.
/// Returns main's result.
using Step = std::function<void()>;
int run_until_a_loss(int argc, char** argv,
                     const std::function<Step(ProcessGroup&, const std::string&)>& make_step);

}  // namespace tutti::soak
