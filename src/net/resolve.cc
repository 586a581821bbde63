#include "net/resolve.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "net/poller.h"
#include "net/system_error.h"
#include "tutti/error.h"

namespace tutti::net {
namespace {

struct Free {
  void operator()(addrinfo* answers) const { ::freeaddrinfo(answers); }
};
using Answers = std::unique_ptr<addrinfo, Free>;

/// A look-up under way: shared by who waits for it and the thread that does it.
struct LookUp {
  std::string host, service;
  std::mutex mutex;  // guards what follows
  Condition changed;
  bool is_done = false;
  int code = 0;
  std::vector<TcpAddress> addresses = {};
};

std::string without_brackets(const std::string& host) {
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return has_brackets ? host.substr(1, host.size() - 2) : host;
}

addrinfo wanted(int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  return hints;
}

std::vector<TcpAddress> addresses_of(const addrinfo* answers) {
  std::vector<TcpAddress> addresses;
  for (const addrinfo* answer = answers; answer != nullptr; answer = answer->ai_next) {
    if (answer->ai_family != AF_INET && answer->ai_family != AF_INET6) continue;
    const TcpAddress address = TcpAddress::of(answer->ai_addr, answer->ai_addrlen);
    const bool is_there =
        std::any_of(addresses.begin(), addresses.end(),
                    [&](const TcpAddress& other) { return other.text() == address.text(); });
    if (!is_there) addresses.push_back(address);
  }
  return addresses;
}

Error not_found(const std::string& host, int code) {
  if (code == EAI_AGAIN || code == EAI_SYSTEM || code == EAI_MEMORY) {
    return Error(ErrorCode::kSystem,
                 fmt::format("the name of host '{}' cannot be looked up: {}. Does this host reach "
                             "its name server? An address in numbers needs none",
                             host, ::gai_strerror(code)));
  }
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("there is no host '{}': {}. Is it spelled right, and known on this "
                           "host (`getent hosts {}`)? An address in numbers works, too",
                           host, ::gai_strerror(code), host));
}

void look_up(LookUp& shared) noexcept {
  sigset_t all;  // signals are the program's: its own threads handle them
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  const addrinfo hints = wanted(AI_NUMERICSERV);
  addrinfo* found = nullptr;
  int code = ::getaddrinfo(shared.host.c_str(), shared.service.c_str(), &hints, &found);
  std::vector<TcpAddress> addresses;
  try {
    if (code == 0) addresses = addresses_of(Answers(found).get());
    if (code == 0 && addresses.empty()) code = EAI_NONAME;
  } catch (const std::exception&) {
    code = EAI_MEMORY;
  }
  const std::lock_guard lock(shared.mutex);
  shared.code = code;
  shared.addresses = std::move(addresses);
  shared.is_done = true;
  shared.changed.notify_all();
}

/// A thread that is left behind runs code of this library: it must not be unloaded.
void keep_library_loaded() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&look_up), &info) == 0) return;
  static_cast<void>(::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE));
}

/// Whether it came to an end before the deadline.
bool await(LookUp& shared, Deadline& deadline) {
  std::unique_lock lock(shared.mutex);
  while (!shared.is_done && shared.changed.wait(lock, deadline)) {
  }
  return shared.is_done;
}

}  // namespace

std::vector<TcpAddress> resolve(const std::string& host, int port, Deadline& deadline) {
  deadline.start(Deadline::Clock::now());
  const std::string name = without_brackets(host);
  const std::string service = std::to_string(port);
  const addrinfo numeric = wanted(AI_NUMERICHOST | AI_NUMERICSERV);
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), service.c_str(), &numeric, &found) == 0) {
    return addresses_of(Answers(found).get());
  }
  const auto shared = std::make_shared<LookUp>();
  shared->host = name;
  shared->service = service;
  std::thread thread;
  try {
    thread = std::thread([shared] { look_up(*shared); });
  } catch (const std::system_error& failure) {
    throw no_thread_error("cannot start a thread that looks up a name", failure.code().value());
  }
  if (!await(*shared, deadline)) {
    keep_library_loaded();
    thread.detach();
    throw Error(ErrorCode::kTimeout,
                fmt::format("looking up the name of host '{}': no answer for {:.1f} s. Does this "
                            "host reach its name server? An address in numbers needs none",
                            host, std::chrono::duration<double>(deadline.budget()).count()));
  }
  thread.join();
  if (shared->code != 0) throw not_found(host, shared->code);
  return std::move(shared->addresses);
}

}  // namespace tutti::net
