// Messages and life of a group: each message makes one Request and submits it.
#include "tutti/process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "group/callback.h"
#include "group/group_impl.h"

namespace tutti {

namespace {

using Impl = ProcessGroup::Impl;

Request send_request(const Impl& group, ConstBuffer data, int to, const SendOptions& options,
                     Where where) {
  Request request = group.request(Op::send, options.timeout, where);
  request.dtype = data.dtype;
  request.count = data.count;
  request.input = data;
  request.message = {.peer = to, .tag = options.tag, .buffered = options.buffered};
  return request;
}

Request recv_request(const Impl& group, Buffer data, int from, const RecvOptions& options,
                     Where where) {
  Request request = group.request(Op::recv, options.timeout, where);
  request.dtype = data.dtype;
  request.count = data.count;
  request.output = data;
  request.message = {.peer = from, .tag = options.tag, .matched = options.info};
  return request;
}

/// Blocking: returns what the message was.
MessageInfo run_recv(Impl& group, Request request) {
  MessageInfo info;
  MessageInfo* const also = std::exchange(request.message.matched, &info);
  group.run(request);
  if (also != nullptr) *also = info;
  return info;
}

void run(Impl& group, Request request) { group.run(request); }
Work start(Impl& group, Request request) { return group.start(request); }

}  // namespace

ProcessGroup::ProcessGroup() noexcept = default;
ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;
ProcessGroup::~ProcessGroup() = default;

void ProcessGroup::throw_empty(const Where& where, const char* call) {
  const std::string site = name_of(where);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}{}: this group is empty: the calling rank is not a member of it, or "
                          "it has been moved from. Ask is_member() first.",
                          call, site.empty() ? "" : " at " + site),
              {.op = call, .call_site = site});
}

detail::BorrowedGroup::BorrowedGroup(const ProcessGroup& group, const Where& where,
                                     const char* borrower)
    : impl_(group.impl_), number_(group.impl(where, borrower).count_borrower()) {}

ProcessGroup detail::BorrowedGroup::lock() const noexcept { return ProcessGroup(impl_.lock()); }

bool ProcessGroup::is_member() const noexcept { return impl_ != nullptr; }
int ProcessGroup::rank() const { return impl().rank(); }
int ProcessGroup::world_size() const { return impl().group_size(); }
std::span<const int> ProcessGroup::world_ranks() const { return impl().parts().world_ranks; }
const std::string& ProcessGroup::name() const { return impl().parts().name; }
int ProcessGroup::local_rank() const { return impl().local_ranks_before(rank()); }
int ProcessGroup::local_world_size() const { return impl().local_ranks_before(world_size()); }
std::string ProcessGroup::host() const { return impl().host(); }
BackendInfo ProcessGroup::backend() const { return impl().info(); }
Support ProcessGroup::supports(const OpKey& key) const { return impl().supports(key); }

// ---- messages ---------------------------------------------------------------------------------

void ProcessGroup::send(ConstBuffer data, int to, SendOptions options, Where where) {
  run(impl(where), send_request(impl(where), data, to, options, where));
}
Work ProcessGroup::send(ConstBuffer data, int to, SendOptions options, Async, Where where) {
  return start(impl(where), send_request(impl(where), data, to, options, where));
}
Work ProcessGroup::send(ConstBuffer data, int to, Async, Where where) {
  return start(impl(where), send_request(impl(where), data, to, {}, where));
}

MessageInfo ProcessGroup::recv(Buffer data, int from, RecvOptions options, Where where) {
  return run_recv(impl(where), recv_request(impl(where), data, from, options, where));
}
Work ProcessGroup::recv(Buffer data, int from, RecvOptions options, Async, Where where) {
  return start(impl(where), recv_request(impl(where), data, from, options, where));
}
Work ProcessGroup::recv(Buffer data, int from, Async, Where where) {
  return start(impl(where), recv_request(impl(where), data, from, {}, where));
}

namespace {

constexpr auto room_request = [](const Impl& group, const auto& room, int from,
                                 const RecvOptions& options, Where where) {
  Request request = recv_request(group, Buffer(nullptr, 0, room.dtype), from, options, where);
  request.message.make_room = room.make;
  request.message.per_item = room.per_item;
  request.message.room_context = room.context;
  return request;
};

}  // namespace

MessageInfo ProcessGroup::recv_into(Room room, int from, RecvOptions options, Where where) {
  return run_recv(impl(where), room_request(impl(where), room, from, options, where));
}
Work ProcessGroup::recv_into(Room room, int from, RecvOptions options, Async, Where where) {
  return start(impl(where), room_request(impl(where), room, from, options, where));
}

namespace {

Request message_request(const Impl& group, const Message& message, Where where) {
  return message.op == Op::send
             ? send_request(
                   group, message.input, message.peer,
                   {.tag = message.tag, .buffered = message.buffered, .timeout = message.timeout},
                   where)
             : recv_request(group, message.output, message.peer,
                            {.tag = message.tag, .timeout = message.timeout, .info = message.info},
                            where);
}

}  // namespace

std::vector<Work> ProcessGroup::batch(List<Message> list, Async, Where where) {
  const std::span<const Message> messages = list;
  std::vector<Request> requests;
  requests.reserve(messages.size());
  for (const Message& message : messages) {
    requests.push_back(message_request(impl(where), message, where));
  }
  return impl(where).start_all(requests);
}
void ProcessGroup::batch(List<Message> messages, Where where) {
  // Before anything is posted.
  group::refuse_in_callback({.op = "batch", .rank = rank(), .call_site = name_of(where)});
  std::vector<Work> works = batch(messages, async, where);
  wait_all(works);
}
MessageInfo ProcessGroup::sendrecv(ConstBuffer input, Buffer output, SendRecvOptions options,
                                   Where where) {
  MessageInfo info;
  static const Purpose purpose{.text = "sendrecv"};  // messages have no chain
  input.is_temporary = false;                        // it lives until this returns
  const std::array<Message, 2> both = {
      Message::recv(output, options.from,
                    {.tag = options.recv_tag, .timeout = options.timeout, .info = &info}),
      Message::send(input, options.to, {.tag = options.send_tag, .timeout = options.timeout})};
  batch(both, where.with(purpose));
  return info;
}

// ---- groups, memory, life ---------------------------------------------------------------------

ProcessGroup ProcessGroup::new_group(const Integers<int>& ranks, Where where) {
  return impl(where).new_group(ranks.numbers(), where);
}
ProcessGroup ProcessGroup::split(SplitOptions options, Where where) {
  const auto ranks = impl(where).size();
  const std::array<std::int32_t, 2> mine = {options.color, options.key};
  std::vector<std::int32_t> all(2 * ranks);
  const Purpose for_colors = Purpose::part("the colors of split", where);
  all_gather(mine, all, {}, where.with(for_colors));
  if (options.color < 0) return {};
  std::vector<int> members;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (all[2 * rank] == options.color) members.push_back(static_cast<int>(rank));
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return all[2 * static_cast<std::size_t>(a) + 1] < all[2 * static_cast<std::size_t>(b) + 1];
  });
  return new_group(members, where);
}
Memory ProcessGroup::allocate(std::size_t byte_count) { return impl().allocate(byte_count); }
std::optional<Error> ProcessGroup::error() const { return impl().error(); }
void ProcessGroup::on_failure(FailureCallback callback) { impl().on_failure(std::move(callback)); }
void ProcessGroup::abort(const std::string& reason) { impl().abort(reason); }
void ProcessGroup::close(Timeout deadline, Where where) {
  if (is_member()) impl(where).close(deadline, where);
}

}  // namespace tutti
