// Whatever the process answers that is taken for the server of a store: the client's calls end in
// time, with an answer or an error.
#include <sys/socket.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "fuzz/input.h"
#include "net/frame.h"
#include "net/poller.h"
#include "net/unix_socket.h"
#include "store/client.h"

namespace {

using namespace tutti;
using namespace std::chrono_literals;

/// Whoever connects is sent one text, and then the end. Its thread ends with the process.
class FalseServer {
 public:
  FalseServer() : listener_(net::listen(address_)) {
    std::thread([this] { serve(); }).detach();
  }
  const std::string& address() const { return address_; }
  void say(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }

 private:
  void serve() {
    for (Deadline never;; net::poll_readable(listener_.get(), never)) {
      const net::Fd guest(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!guest) continue;
      const std::lock_guard lock(mutex_);
      (void)!::send(guest.get(), text_.data(), text_.size(), MSG_NOSIGNAL);
      ::shutdown(guest.get(), SHUT_WR);
      char heard[4096];
      while (::recv(guest.get(), heard, sizeof heard, 0) > 0) {
      }
    }
  }

  const std::string address_ = "@tutti-fuzz-" + random_name();
  const net::Fd listener_;
  std::mutex mutex_;
  std::string text_;
};

/// A welcome of some bytes, or the right one; then frames whose headers are well formed, or bytes.
std::string speech(fuzz::Input& input) {
  std::string text;
  const std::uint8_t kind = input.byte();
  net::Frame welcome = store::encode_welcome(std::nullopt, false);
  if (kind % 4 == 0) welcome.body = input.text(kind);
  net::append_frame(&text, welcome);
  while (!input.is_empty()) {
    const std::uint8_t what = input.byte();
    if (what >= 200) {
      text += input.text(what - 200);
      continue;
    }
    net::append_frame(
        &text, {store::kFrameAnswer + what % 4u, 1 + what / 4 % 4u, input.text(input.byte())});
  }
  return text;
}

template <class Call>
void end(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    fuzz::require(*error.what() != '\0');
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  static FalseServer& server = *new FalseServer;
  fuzz::Input input(data, byte_count);
  server.say(speech(input));
  end([] {
    const auto connected = store::try_connect_store(server.address(), {}, Deadline::after(1s));
    fuzz::require(connected.has_value());
    Store& store = *connected->store;
    end([&] { store.get("key", 1s); });
    end([&] { store.num_keys(1s); });
    end([&] { (void)store.try_get("key", 1s); });
    end([&] { store.multi_get(std::vector<std::string>{"a", "b"}, 1s); });
  });
  return 0;
}
