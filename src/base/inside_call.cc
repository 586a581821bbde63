#include "base/inside_call.h"

namespace tutti {

namespace {

thread_local int depth = 0;

}  // namespace

InsideCall::InsideCall() noexcept { ++depth; }
InsideCall::~InsideCall() { --depth; }

bool is_inside_call() noexcept { return depth > 0; }

}  // namespace tutti
