#include "base/last_words.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>

#include "base/log.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// What stderr has to take the line.
constexpr std::chrono::milliseconds kPatience{200};

std::terminate_handler first_handler = nullptr, former_handler = nullptr;
std::string* error_file_of_rank = nullptr;  // never freed: threads may end the process at any time

/// For the post-mortem. What the program has said there stays.
void note(const std::string& text) noexcept {
  const int file = ::open(error_file_of_rank->c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return;
  struct stat status {};
  const bool is_empty = ::fstat(file, &status) == 0 && status.st_size == 0;
  if (is_empty) {  // where it cannot be written the line on stderr says the same
    [[maybe_unused]] const ssize_t done = ::write(file, text.data(), text.size());
  }
  ::close(file);
}

[[noreturn]] void speak_and_exit() {
  if (const std::exception_ptr uncaught = std::current_exception()) {
    try {
      std::rethrow_exception(uncaught);
    } catch (const Error& error) {
      const std::string text = fmt::format("{}: {}", name_of(error.code()), error.what());
      log(LogLevel::error, "uncaught tutti::Error " + text);
      note(text);
      flush_log(kPatience);
      // What the program printed must not be lost with its buffer; but another thread may hold it.
      if (::ftrylockfile(stdout) == 0) std::fflush(stdout);
      ::_exit(1);
    } catch (...) {  // the former handler reports it
    }
  }
  // A handler that the program has put over this one may call it in its turn.
  static thread_local bool has_called_former = false;
  const std::terminate_handler next = has_called_former ? first_handler : former_handler;
  has_called_former = true;
  if (next != nullptr) next();
  std::abort();
}

}  // namespace

void install_last_words(const Environment& environment) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (error_file_of_rank == nullptr) {
    const auto error_file = environment.find("TORCHELASTIC_ERROR_FILE");
    error_file_of_rank = new std::string(error_file == environment.end() ? "" : error_file->second);
  }
  // A handler of the program's own may have come since.
  if (std::get_terminate() == speak_and_exit) return;
  former_handler = std::set_terminate(speak_and_exit);
  if (first_handler == nullptr) first_handler = former_handler;
}

namespace {

/// An Error may come before any world, out of make_tcp_store or of spawn.
[[gnu::constructor]] void install_in_ranks_of_tutti_run() {
  const Environment environment = read_environment();
  if (environment.contains("TUTTI_AGENT")) install_last_words(environment);
}

}  // namespace

}  // namespace tutti
