#include "ddp/hook.h"

#include <fmt/format.h>

#include "ddp/model_check.h"
#include "tutti/error.h"

namespace tutti::ddp {
namespace {

[[noreturn]] void fail(const NamedHook& hook, const GradientBucket& bucket, int rank,
                       const std::string& what) {
  ErrorContext context;
  context.rank = rank;
  context.call_site = name_of(bucket.where);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("rank {}: the communication hook '{}'{} {}", rank, hook.name,
                          purpose_of(bucket.where), what),
              std::move(context));
}

}  // namespace

Work start_mean(const NamedHook& hook, const GradientBucket& bucket, ProcessGroup& group) {
  if (!hook.function) {
    return group.all_reduce(bucket.gradients, {.op = bucket.mean}, async, bucket.where);
  }
  Work work;
  try {
    work = hook.function(bucket, group);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& thrown) {
    fail(hook, bucket, group.rank(), fmt::format("threw: {}", thrown.what()));
  } catch (...) {
    fail(hook, bucket, group.rank(), "threw something that is not an exception");
  }
  if (work.is_empty()) {
    fail(hook, bucket, group.rank(),
         "returned no Work; return that of an operation with tutti::async, or of `then` behind it");
  }
  return work;
}

void check_same_hook(ProcessGroup& group, const std::string& owner, const NamedHook& hook,
                     Where where) {
  const std::string line = hook.function ? hook.name : hook.name + " (none)";
  check_same(
      group,
      {"set_communication_hook", owner, "communication hooks", "Set the same one on every rank."},
      {line}, where);
}

}  // namespace tutti::ddp
