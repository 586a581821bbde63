#include "base/last_words.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "base/log.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// What stderr has to take the line.
constexpr std::chrono::milliseconds kPatience{200};

std::terminate_handler former_handler = nullptr;

[[noreturn]] void speak_and_exit() {
  if (const std::exception_ptr uncaught = std::current_exception()) {
    try {
      std::rethrow_exception(uncaught);
    } catch (const Error& error) {
      log(LogLevel::error,
          fmt::format("uncaught tutti::Error {}: {}", name_of(error.code()), error.what()));
      flush_log(kPatience);
      // What the program printed must not be lost with its buffer; but another thread may hold it.
      if (::ftrylockfile(stdout) == 0) std::fflush(stdout);
      ::_exit(1);
    } catch (...) {  // the former handler reports it
    }
  }
  if (former_handler != nullptr) former_handler();
  std::abort();
}

}  // namespace

void install_last_words() {
  static std::once_flag once;
  std::call_once(once, [] { former_handler = std::set_terminate(speak_and_exit); });
}

}  // namespace tutti
