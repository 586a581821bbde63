#include "store/call.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::store {
namespace {

constexpr std::size_t kMaxTextBytes = 4096;

bool is_command(std::uint32_t type) {
  return type >= static_cast<std::uint32_t>(Command::set) &&
         type <= static_cast<std::uint32_t>(Command::will);
}

void put_list(net::ByteWriter& writer, std::span<const std::string> list) {
  writer.u32(static_cast<std::uint32_t>(list.size()));
  for (const std::string& item : list) writer.bytes(item);
}

/// At most kMaxCallKeys items; each takes at least four bytes, so the list cannot outgrow the body.
bool take_list(net::ByteReader& reader, std::size_t max_bytes, std::vector<std::string>* list) {
  const std::uint32_t count = reader.u32();
  if (count > kMaxCallKeys) return false;
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    list->emplace_back(reader.bytes(max_bytes));
  }
  return reader.ok();
}

std::string quote(std::string_view key) {
  constexpr std::size_t kShown = 80;
  std::string text = "'";
  for (const char c : key.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text + (key.size() > kShown ? "...'" : "'");
}

}  // namespace

std::string_view name_of(Command command) noexcept {
  switch (command) {
    case Command::set:
      return "set";
    case Command::get:
      return "get";
    case Command::try_get:
      return "try_get";
    case Command::add:
      return "add";
    case Command::compare_set:
      return "compare_set";
    case Command::wait:
      return "wait";
    case Command::check:
      return "check";
    case Command::erase:
      return "erase";
    case Command::num_keys:
      return "num_keys";
    case Command::append:
      return "append";
    case Command::will:
      return "will";
  }
  return "?";
}

Call call_of(const Will& will) {
  Call call{
      Command::will, {will.key}, {will.value, will.text, will.silent_text, will.changed_text}};
  call.keys.insert(call.keys.end(), will.absent.begin(), will.absent.end());
  return call;
}

std::optional<Will> will_of(const Call& call) {
  if (call.command != Command::will || call.keys.size() < 2 || call.values.size() != 4) {
    return std::nullopt;
  }
  return Will{call.keys[0],   call.values[0], {call.keys.begin() + 1, call.keys.end()},
              call.values[1], call.values[2], call.values[3]};
}

void check_limits(const Call& call) {
  const auto fail = [&](std::string text) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("store {}: {}", name_of(call.command), text));
  };
  if (call.keys.size() > kMaxCallKeys) {
    fail(fmt::format("{} keys in one call, at most {} are taken", call.keys.size(), kMaxCallKeys));
  }
  if (call.command == Command::set && call.keys.size() != call.values.size()) {
    fail(fmt::format("{} keys and {} values", call.keys.size(), call.values.size()));
  }
  std::size_t total = 0;
  for (const std::string& key : call.keys) {
    if (key.empty()) fail("an empty key: give one of at least one byte");
    if (key.size() > kMaxKeyBytes) {
      fail(fmt::format("key {} of {} bytes, at most {} are taken", quote(key), key.size(),
                       kMaxKeyBytes));
    }
    total += key.size() + 4;
  }
  for (const std::string& value : call.values) {
    if (value.size() > kMaxValueBytes) {
      fail(fmt::format("a value of {} bytes for key {}, at most {} are taken", value.size(),
                       call.keys.empty() ? "" : quote(call.keys[0]), kMaxValueBytes));
    }
    total += value.size() + 4;
  }
  if (total > kMaxCallBytes - 64) {
    fail(fmt::format("{} bytes in one call, at most {} are taken: split it", total,
                     kMaxCallBytes - 64));
  }
}

net::Frame encode(const Call& call, std::uint64_t id) {
  net::Frame frame{static_cast<std::uint32_t>(call.command), id, {}};
  net::ByteWriter writer(&frame.body);
  put_list(writer, call.keys);
  put_list(writer, call.values);
  writer.i64(call.number);
  return frame;
}

std::optional<Call> decode_call(const net::Frame& frame) {
  if (!is_command(frame.type)) return std::nullopt;
  Call call;
  call.command = static_cast<Command>(frame.type);
  net::ByteReader reader(frame.body);
  if (!take_list(reader, kMaxKeyBytes, &call.keys)) return std::nullopt;
  if (!take_list(reader, kMaxValueBytes, &call.values)) return std::nullopt;
  call.number = reader.i64();
  if (!reader.at_end()) return std::nullopt;
  return call;
}

net::Frame encode(const Answer& answer, std::uint64_t id) {
  net::Frame frame{kFrameAnswer, id, {}};
  net::ByteWriter writer(&frame.body);
  put_list(writer, answer.values);
  writer.i64(answer.number);
  return frame;
}

std::optional<Answer> decode_answer(const net::Frame& frame) {
  if (frame.type != kFrameAnswer) return std::nullopt;
  Answer answer;
  net::ByteReader reader(frame.body);
  if (!take_list(reader, kMaxValueBytes, &answer.values)) return std::nullopt;
  answer.number = reader.i64();
  if (!reader.at_end()) return std::nullopt;
  return answer;
}

net::Frame encode_failed(const Error& error, std::uint64_t id) {
  net::Frame frame{kFrameFailed, id, {}};
  net::ByteWriter writer(&frame.body);
  writer.u32(static_cast<std::uint32_t>(error.code()));
  writer.bytes(std::string_view(error.what()).substr(0, kMaxTextBytes));
  const std::vector<int>& culprits = error.context().culprits;
  const std::size_t named = std::min(culprits.size(), kMaxCulprits);
  writer.u32(static_cast<std::uint32_t>(named));
  for (std::size_t i = 0; i < named; ++i) writer.u32(static_cast<std::uint32_t>(culprits[i]));
  return frame;
}

Error decode_failed(const net::Frame& frame) {
  net::ByteReader reader(frame.body);
  const std::uint32_t code = reader.u32();
  const std::string text(reader.bytes(kMaxTextBytes));
  const std::uint32_t named = reader.u32();
  ErrorContext context;
  for (std::uint32_t i = 0; i < named && i < kMaxCulprits; ++i) {
    context.culprits.push_back(static_cast<int>(reader.u32()));
  }
  if (!reader.at_end() || code >= kErrorCodeCount || text.empty() || text.find('\0') != text.npos) {
    return Error(ErrorCode::kInternal, "the store's server sent a malformed failure");
  }
  return Error(static_cast<ErrorCode>(code), text, std::move(context));
}

net::Frame encode_missing(std::span<const std::string> keys, std::uint64_t id) {
  net::Frame frame{kFrameMissing, id, {}};
  net::ByteWriter writer(&frame.body);
  put_list(writer, keys);
  return frame;
}

std::vector<std::string> decode_missing(const net::Frame& frame) {
  std::vector<std::string> keys;
  net::ByteReader reader(frame.body);
  take_list(reader, kMaxKeyBytes, &keys);
  return keys;
}

std::string format_keys(std::span<const std::string> keys) {
  constexpr std::size_t kListed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kListed); ++i) {
    text += (i == 0 ? "" : ", ") + quote(keys[i]);
  }
  if (keys.size() > kListed) text += fmt::format(" and {} more", keys.size() - kListed);
  return text;
}

Error missing_error(Command command, std::span<const std::string> missing, double seconds,
                    std::string_view place) {
  return Error(ErrorCode::kTimeout,
               fmt::format("store {}: {} {} not set within {:.3g} s ({}): a rank that should set "
                           "{} has not come so far, failed, or uses another name",
                           name_of(command), missing.size() == 1 ? "key" : "keys",
                           format_keys(missing) + (missing.size() == 1 ? " was" : " were"), seconds,
                           place, missing.size() == 1 ? "it" : "them"));
}

}  // namespace tutti::store
