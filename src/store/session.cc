#include "store/session.h"

#include <algorithm>
#include <utility>

namespace tutti::store {

net::Frame encode(const Hello& hello) {
  net::Frame frame{kFrameHello, 0, {}};
  net::ByteWriter writer(&frame.body);
  writer.u32(kGreetingMagic);
  writer.u32(hello.version);
  writer.u32(static_cast<std::uint32_t>(hello.rank));
  writer.u32(static_cast<std::uint32_t>(hello.world_size));
  writer.u64(hello.job);
  writer.u64(hello.world);
  return frame;
}

net::Key key_of_store(const net::Security& security) {
  return net::derive(security.secret.bytes(), {}, "tutti store");
}

Error changed_error(const std::string& whose) {
  return Error(ErrorCode::kUnauthenticated,
               "a frame on " + whose +
                   " was changed on its way: somebody or something between them alters what they "
                   "send. Look at the network, then start the job again",
               {.op = "store"});
}

std::string turned_away_key(int rank) { return "tutti/turned_away/" + std::to_string(rank); }

std::optional<Error> check_version(const Hello& hello) {
  if (hello.version == kProtocolVersion) return std::nullopt;
  return Error(ErrorCode::kUnsupported,
               "the store's server speaks version " + std::to_string(kProtocolVersion) +
                   " of the protocol, this rank version " + std::to_string(hello.version) +
                   ": use one version of Tutti for the whole job");
}

net::Frame encode_welcome(const std::optional<Error>& refusal, bool with_descriptor,
                          std::string_view server) {
  net::Frame frame{kFrameWelcome, 0, {}};
  net::ByteWriter writer(&frame.body);
  writer.u32(kGreetingMagic);
  writer.u32(kProtocolVersion);
  writer.u32(refusal ? static_cast<std::uint32_t>(refusal->code()) + 1 : 0);
  writer.u32(with_descriptor ? 1 : 0);
  writer.bytes(refusal ? std::string_view(refusal->what()).substr(0, 2048) : server);
  return frame;
}

Guest::~Guest() {
  for (const auto& [id, wait] : waits_) hall_.forget(*this, id, wait.key());
  hall_.guests_.erase(this);
  if (!will_ || hall_.is_closing_) return;
  try {
    hall_.execute(*will_, is_changed_  ? will_->changed_text
                          : is_silent_ ? will_->silent_text
                                       : will_->text);
  } catch (const std::exception&) {  // no memory: the others find out by their own deadlines
  }
}

void Guest::protect(const net::FrameKeys& keys) {
  decoder_.protect(keys.receive);
  queue_.protect(keys.send);
  is_protected_ = true;
}

bool Guest::receive(std::span<const std::byte> bytes) {
  decoder_.feed(bytes);
  net::Frame frame;
  while (wants_more() && (!hello_ || is_welcome_)) {
    switch (decoder_.next(&frame)) {
      case net::FrameDecoder::Next::more:
        return true;
      case net::FrameDecoder::Next::malformed:
        if (!is_protected_) return false;
        is_changed_ = true;
        queue_.push(encode_failed(changed_error("the connection to the store"), kIdOfChanged));
        return false;
      case net::FrameDecoder::Next::frame:
        if (!(hello_ ? take_call(frame) : take_greeting(frame))) return false;
        break;
    }
  }
  return true;
}

bool Guest::take_greeting(const net::Frame& frame) {
  net::ByteReader reader(frame.body);
  const std::uint32_t magic = reader.u32();
  Hello hello;
  hello.version = reader.u32();
  if (frame.type != kFrameHello || magic != kGreetingMagic) return false;
  if (hello.version == kProtocolVersion) {  // of another one we only know where its version stands
    hello.rank = static_cast<int>(reader.u32());
    hello.world_size = static_cast<int>(reader.u32());
    hello.job = reader.u64();
    hello.world = reader.u64();
    if (!reader.at_end()) return false;
  }
  hello_ = hello;
  decoder_.set_max_body(kMaxCallBytes);
  hall_.guests_.insert(this);
  return true;
}

bool Guest::take_call(const net::Frame& frame) {
  if (is_protected_ && frame.type == kFrameFailed && frame.id == kIdOfChanged) {
    is_changed_ = true;
    return false;
  }
  if (frame.type == kFrameCancel) {
    cancel(frame.id);
    return frame.body.empty();
  }
  std::optional<Call> call = decode_call(frame);
  if (!call || waits_.contains(frame.id)) return false;
  hall_.perform(*this, std::move(*call), frame.id);
  return true;
}

void Guest::cancel(std::uint64_t id) {
  const auto found = waits_.find(id);
  if (found == waits_.end()) return;  // answered already
  std::vector<std::string> missing = hall_.table_.missing(found->second.call.keys);
  if (missing.size() > 64) missing.resize(64);
  hall_.forget(*this, id, found->second.key());
  waits_.erase(found);
  queue_.push(encode_missing(missing, id));
}

void Hall::fail(const Error& reason) {
  if (failure_) return;
  failure_ = reason;
  lacking_.clear();
  for (Guest* guest : guests_) {
    for (const auto& [id, wait] : guest->waits_) guest->queue_.push(encode_failed(reason, id));
    guest->waits_.clear();
  }
}

void Hall::perform(Guest& guest, Call call, std::uint64_t id) {
  if (failure_) {
    guest.queue_.push(encode_failed(*failure_, id));
    return;
  }
  try {
    if (call.command == Command::will) {
      guest.queue_.push(encode(take_will(guest, call), id));
      return;
    }
    if (std::optional<Answer> answer = table_.apply(call)) {
      guest.queue_.push(encode(*answer, id));
      const bool may_create = call.command == Command::set || call.command == Command::add ||
                              call.command == Command::compare_set ||
                              call.command == Command::append;
      if (may_create) wake(call.keys);
      return;
    }
  } catch (const Error& error) {
    guest.queue_.push(encode_failed(error, id));
    return;
  }
  if (guest.waits_.size() == kMaxWaits) {
    guest.queue_.push(encode_failed(
        Error(ErrorCode::kSystem, "store: more than 1024 calls of one process wait at a time"),
        id));
    return;
  }
  const std::size_t lacks = table_.first_missing(call.keys);
  keep(guest, id, {std::move(call), lacks});
}

Answer Hall::take_will(Guest& guest, const Call& call) {
  check_limits(call);
  std::optional<Will> will = will_of(call);
  if (!will && !call.keys.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "store will: a malformed one");
  }
  const bool is_taken = will && std::ranges::any_of(guests_, [&](const Guest* other) {
                          return other != &guest && other->will_ &&
                                 other->will_->key == will->key &&
                                 other->will_->value == will->value;
                        });
  if (is_taken) {
    throw Error(ErrorCode::kInvalidArgument,
                "store will: another client has left one for the same value of this key");
  }
  guest.will_ = std::move(will);
  return {};
}

void Hall::execute(const Will& will, const std::string& text) {
  const auto value_of = [&](const std::string& key) {
    return table_.apply({Command::try_get, {key}})->values;
  };
  const std::vector<std::string> now = value_of(will.key);
  if (now.empty() || now[0] != will.value || !value_of(will.absent[0]).empty()) return;
  for (const std::string& key : will.absent) {
    table_.apply({Command::compare_set, {key}, {"", text}});
  }
  wake(will.absent);
}

void Hall::put(const std::string& key, const std::string& value) {
  table_.apply({Command::set, {key}, {value}});
  wake(std::span(&key, 1));
}

void Hall::keep(Guest& guest, std::uint64_t id, Guest::Wait wait) {
  lacking_[wait.key()].emplace_back(&guest, id);
  guest.waits_.insert_or_assign(id, std::move(wait));
}

void Hall::wake(std::span<const std::string> keys) {
  for (const std::string& key : keys) {
    const auto found = lacking_.find(key);
    if (found == lacking_.end()) continue;
    const std::vector<Waiting> waiting = std::move(found->second);
    lacking_.erase(found);
    for (const auto& [guest, id] : waiting) {
      if (guest->is_flooded()) continue;  // about to be closed, with all its waits
      auto entry = guest->waits_.extract(id);
      Guest::Wait& wait = entry.mapped();
      wait.lacks = table_.first_missing(wait.call.keys, wait.lacks);
      if (wait.lacks < wait.call.keys.size()) {
        keep(*guest, id, std::move(wait));
      } else {
        perform(*guest, std::move(wait.call), id);  // keys it has passed may be gone again
      }
    }
  }
}

void Hall::forget(Guest& guest, std::uint64_t id, const std::string& key) {
  const auto found = lacking_.find(key);
  if (found == lacking_.end()) return;
  std::erase(found->second, Waiting(&guest, id));
  if (found->second.empty()) lacking_.erase(found);
}

}  // namespace tutti::store
