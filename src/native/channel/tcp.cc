#include "native/channel/tcp.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "tutti/error.h"

namespace tutti::native {
namespace {

/// From the end of a payload to the end of its last line.
constexpr std::size_t padding_after(std::uint64_t position) noexcept {
  return (kWireHeaderBytes - position % kWireHeaderBytes) % kWireHeaderBytes;
}

/// What is read at once where a header is due: a small frame, with what is before it in its line.
constexpr std::size_t kHeadBytes = kWireHeaderBytes + kWireHeaderBytes + kWholeBytes;

constexpr WireHeader kZeros{};

/// Content alone comes in parts; all else is shown whole.
constexpr std::size_t max_payload(FrameType type) noexcept {
  const bool is_content = type == FrameType::segment || type == FrameType::content;
  return is_content ? kMaxTcpPayload : kWholeBytes;
}

/// What follows a payload where the connection is protected.
constexpr std::size_t kTagLine = kWireHeaderBytes;
/// So much of a frame in the buffer can be shown in part, whatever is held back of its end.
constexpr std::size_t kEnough = kWireHeaderBytes,
                      kEnoughBeforeTag = 2 * kWireHeaderBytes + kTagLine;

/// As much as is worth a wake-up, where more is to come.
constexpr std::size_t kWorthAnAlarm = std::size_t{256} << 10;

/// The parts of a frame, less those bytes of it that are out.
class Parts {
 public:
  void add(const void* data, std::size_t byte_count) noexcept {
    const std::size_t out = std::min(out_, byte_count);
    out_ -= out;
    if (byte_count == out) return;
    parts_[count_++] = {const_cast<std::byte*>(static_cast<const std::byte*>(data) + out),
                        byte_count - out};
  }
  explicit Parts(std::size_t out) noexcept : out_(out) {}
  std::span<const iovec> get() const noexcept { return {parts_.data(), count_}; }

 private:
  std::size_t out_;
  std::array<iovec, 4> parts_{};
  std::size_t count_ = 0;
};

}  // namespace

void TcpConnection::set_end(int error_number) noexcept {
  int stands = kStands;
  if (end_.compare_exchange_strong(stands, error_number) && origin_.on_end) origin_.on_end();
}

std::string TcpConnection::how_ended() const {
  const int error = end().value_or(0);
  const std::lock_guard lock(mutex_);
  if (!unmade_.empty()) return "cannot be made: " + unmade_;
  return error == 0 ? "has ended" : "has ended: " + std::generic_category().message(error);
}

bool TcpConnection::want_to_know() noexcept {
  const std::uint64_t sent = sent_.load();
  if (asked_.load() >= sent) return false;
  wanted_.store(sent);
  return true;
}

bool TcpConnection::set_read(std::uint64_t count) noexcept {
  if (count < read_.load() || count > sent_.load()) return false;
  read_.store(count);
  return true;
}

void TcpConnection::set_due(std::size_t byte_count) noexcept {
  const std::size_t due = std::max<std::size_t>(byte_count, 1);
  if (due == due_.load()) return;  // nothing has come: no lock for each look of a wait
  const std::lock_guard lock(due_mutex_);
  due_.store(due);
  if (rings_at_ > due) ring_at(due);
}

void TcpConnection::set_alarm(bool late) noexcept {
  const std::lock_guard lock(due_mutex_);
  const std::uint64_t alarm = alarms_.load();
  if (!late) prompt_ = alarm;
  const std::size_t wanted = prompt_ == alarm ? 1 : std::min(due_.load(), kWorthAnAlarm);
  if (rings_at_ != wanted) ring_at(wanted);
}

/// The kernel looks at once whether so much is there.
void TcpConnection::ring_at(std::size_t byte_count) noexcept {
  if (net::set_least_to_read(socket(), byte_count)) rings_at_ = byte_count;
}

int TcpConnection::take(bool makes) {
  if (end()) return -1;
  std::string unmade;
  try {
    const std::lock_guard lock(mutex_);
    if (!secured_ && origin_.take) {
      secured_ = origin_.take(makes);
      descriptor_.store(secured_.socket.get());
    }
    return secured_.socket.get();
  } catch (const Error& error) {
    unmade = error.what();
    is_lacking_here_.store(error.code() == ErrorCode::kSystem);
    is_distrusted_.store(error.code() == ErrorCode::kUnauthenticated);
  }
  {
    const std::lock_guard lock(mutex_);
    unmade_ = std::move(unmade);
  }
  set_end(ENOTCONN);
  return -1;
}

const WireHeader& Seal::line(const WireHeader& header, std::span<const std::byte> payload) {
  if (is_made_) return line_;
  mac_.add(header);
  mac_.add(payload);
  std::ranges::copy(mac_.finish(), line_.begin());
  is_made_ = true;
  return line_;
}

void Seal::take_back() noexcept {
  if (is_made_) mac_.take_back();
  is_made_ = false;
}

Sent TcpSender::try_send(const FrameHeader& header, const void* payload) {
  connection_->set_owes(true);
  const int socket = connection_->socket_to_send();
  if (socket < 0) return Sent::nothing;
  const WireHeader encoded = encode(header);
  if (sent_ > 0 && encoded != under_way_) return Sent::nothing;
  if (connection_->keys() && !seal_) seal_.emplace(connection_->keys()->send);
  const std::size_t padding = padding_after(header.payload_bytes);
  const std::size_t before_tag = encoded.size() + header.payload_bytes + padding;
  const std::size_t whole = before_tag + (seal_ ? kTagLine : 0);
  // Until something of it is out another frame may go instead, even one with the same header.
  const bool has_tag = seal_ && (sent_ > 0 || !had_no_room_);
  Parts parts(sent_);
  parts.add(encoded.data(), encoded.size());
  parts.add(payload, header.payload_bytes);
  parts.add(kZeros.data(), padding);
  if (has_tag) {
    const auto* const bytes = static_cast<const std::byte*>(payload);
    parts.add(seal_->line(encoded, {bytes, header.payload_bytes}).data(), kTagLine);
  }
  const net::TcpMoved moved = net::send_parts(socket, parts.get());
  if (moved.result == net::IoResult::closed) connection_->set_end(moved.error_number);
  sent_ += moved.bytes;
  had_no_room_ = moved.bytes == 0;
  connection_->found_full(sent_ < whole);
  if (sent_ == 0 && seal_) seal_->take_back();
  if (moved.bytes == 0) return Sent::nothing;
  if (sent_ == whole) {
    sent_ = 0;
    if (is_counted(header.type)) connection_->count_sent();
    connection_->set_owes(false);
    if (seal_) seal_->next();
    return Sent::whole;
  }
  under_way_ = encoded;
  const bool tag_is_due = !has_tag && sent_ == before_tag;
  return tag_is_due && try_send(header, payload) == Sent::whole ? Sent::whole : Sent::part;
}

TcpReceiver::TcpReceiver(std::shared_ptr<TcpConnection> connection)
    : connection_(std::move(connection)) {}

const Frame* TcpReceiver::peek() {
  if (!has_frame_ && !begin_frame()) return nullptr;
  if (buffered() < std::min(due(), is_unverified_ ? kEnoughBeforeTag : kEnough)) fill(kBufferBytes);
  verify();
  show();
  return &frame_;
}

/// What has yet to be taken or looked at of the frame.
std::size_t TcpReceiver::due() const noexcept {
  return left() + (is_unverified_ ? padding_after(position_ + left()) + kTagLine : 0);
}

/// What may be taken of the payload once it has come: but for its last line before the tag is found
/// right.
std::size_t TcpReceiver::takeable() const noexcept {
  const std::size_t last_line = kWireHeaderBytes - padding_after(frame_.header.payload_bytes);
  return is_unverified_ ? left() - std::min(left(), last_line) : left();
}

/// Looks at the tag, once it and all that is left of the payload lie here.
void TcpReceiver::verify() {
  if (!is_unverified_ || buffered() < due()) return;
  const std::span<const std::byte> rest(buffer() + begin_, due());
  mac_->add(rest.first(left()));
  if (!net::is_same(mac_->finish(), rest.last(kTagLine).first(net::kFrameTagBytes)))
    throw_changed();
  is_unverified_ = false;
}

/// Of the payload, on its way to who takes it.
void TcpReceiver::count(std::span<const std::byte> taken) {
  if (is_unverified_) mac_->add(taken);
  frame_.taken += taken.size();
}

/// Reads a header, and a payload that is to be shown whole. False: they have yet to come.
bool TcpReceiver::begin_frame() {
  if (lines_ == nullptr) {
    if (connection_->socket_to_receive() < 0) return false;
    lines_.reset(new Line[kBufferBytes / sizeof(Line)]);
    if (connection_->keys()) mac_.emplace(connection_->keys()->receive);
  }
  const std::size_t padding = padding_after(position_);
  if (buffered() < padding + kWireHeaderBytes) fill(kHeadBytes);
  if (buffered() < padding + kWireHeaderBytes) return false;
  skip(padding);
  const std::span<const std::byte, kWireHeaderBytes> encoded(buffer() + begin_, kWireHeaderBytes);
  const std::optional<FrameHeader> header = decode(encoded);
  if (!header) throw_broken("");
  if (const std::size_t most = max_payload(header->type); header->payload_bytes > most) {
    throw_broken(
        fmt::format(": a payload of {} bytes, at most {} may come", header->payload_bytes, most));
  }
  if (header->payload_bytes <= kWholeBytes) {
    const std::size_t whole = kWireHeaderBytes + header->payload_bytes +
                              (mac_ ? padding_after(header->payload_bytes) + kTagLine : 0);
    if (buffered() < whole) fill(kHeadBytes);
    if (buffered() < whole) return false;
  }
  if (mac_) mac_->add({buffer() + begin_, kWireHeaderBytes});  // it may have been moved
  is_unverified_ = mac_.has_value();
  skip(kWireHeaderBytes);
  frame_.header = *header;
  frame_.taken = 0;
  has_frame_ = true;
  return true;
}

void TcpReceiver::throw_broken(const std::string& what) const {
  if (mac_) throw_changed();
  const int peer = connection_->peer();
  throw Error(ErrorCode::kInternal,
              fmt::format("what came over a connection{} is no frame at byte {}{}",
                          peer >= 0 ? fmt::format(" from rank {}", peer) : "", position_, what),
              {.culprits = peer >= 0 ? std::vector<int>{peer} : std::vector<int>{}});
}

void TcpReceiver::throw_changed() const {
  const int peer = connection_->peer();
  throw Error(ErrorCode::kUnauthenticated,
              fmt::format("a frame{} was changed on its way, or comes from somebody else: its tag "
                          "is wrong at byte {} of the connection",
                          peer >= 0 ? fmt::format(" from rank {}", peer) : "", position_),
              {.culprits = peer >= 0 ? std::vector<int>{peer} : std::vector<int>{}});
}

/// What lies here of the payload and may be taken; never less than an element of it.
void TcpReceiver::show() noexcept {
  const std::size_t here = std::min(buffered(), takeable());
  const bool is_little = here < left() && here < kWireHeaderBytes;
  frame_.payload = {buffer() + begin_, is_little ? 0 : here};
}

void TcpReceiver::take(std::size_t byte_count) {
  count({buffer() + begin_, byte_count});
  skip(byte_count);
  show();
}

std::size_t TcpReceiver::take_into(std::byte* whole) {
  const std::size_t before = frame_.taken;
  copy_into(whole);
  if (takeable() > 0) receive_into(whole + frame_.taken);
  if (is_unverified_) {
    verify();
    copy_into(whole);
  }
  show();
  return frame_.taken - before;
}

void TcpReceiver::copy_into(std::byte* whole) {
  const std::size_t here = std::min(buffered(), takeable());
  if (here == 0) return;
  std::memcpy(whole + frame_.taken, buffer() + begin_, here);
  count({buffer() + begin_, here});
  skip(here);
}

void TcpReceiver::pop() {
  skip(left());
  if (mac_) skip(padding_after(position_) + kTagLine);
  has_frame_ = false;
  if (is_counted(frame_.header.type)) connection_->count_received();
}

void TcpReceiver::skip(std::size_t byte_count) noexcept {
  begin_ += byte_count;
  position_ += byte_count;
}

/// Reads so that at most so many bytes lie in the buffer.
void TcpReceiver::fill(std::size_t most) {
  const std::size_t begin = position_ % kWireHeaderBytes;
  if (begin_ != begin) {
    std::memmove(buffer() + begin, buffer() + begin_, buffered());
    end_ = begin + buffered();
    begin_ = begin;
  }
  const iovec part{buffer() + end_, std::min(begin + most, kBufferBytes) - end_};
  const std::size_t here = buffered();
  end_ += receive({&part, 1}, has_frame_ && due() > here ? due() - here : 0);
}

/// Reads what may be taken of the payload to where it belongs, and what comes behind it: the buffer
/// is empty.
void TcpReceiver::receive_into(std::byte* target) {
  const std::size_t payload = takeable();
  const std::size_t behind = (position_ + payload) % kWireHeaderBytes;
  const iovec parts[] = {{target, payload}, {buffer() + behind, kHeadBytes}};
  const std::size_t moved = receive(parts, due());
  const std::size_t own = std::min(moved, payload);
  count({target, own});
  position_ += own;
  begin_ = position_ % kWireHeaderBytes;
  end_ = begin_ + (moved - own);
}

/// `due`: so much has yet to come of the frame.
std::size_t TcpReceiver::receive(std::span<const iovec> parts, std::size_t due) {
  const int socket = connection_->socket_to_receive();
  if (socket < 0) return 0;
  const net::TcpMoved moved = net::receive_parts(socket, parts);
  if (moved.result == net::IoResult::closed) connection_->set_end(moved.error_number);
  std::size_t room = 0;
  for (const iovec& part : parts) room += part.iov_len;
  connection_->set_due(due - std::min(due, moved.bytes));
  if (moved.bytes < room) connection_->found_read_out();
  return moved.bytes;
}

}  // namespace tutti::native
