#include "launch/error_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "launch/lines.h"

namespace tutti::launch {
namespace {

/// A whole call stack stands there beside the message.
constexpr std::size_t kMostRead = std::size_t{64} << 10;
constexpr std::size_t kMostSaid = 400;

}  // namespace

ErrorFile::ErrorFile() : memory_(::memfd_create("tutti-error-file", MFD_CLOEXEC)) {}

std::string ErrorFile::path() const {
  return memory_ ? fmt::format("/proc/{}/fd/{}", ::getpid(), memory_.get()) : "";
}

std::string ErrorFile::said() const {
  if (!memory_) return "";
  std::string text(kMostRead, '\0');
  const ssize_t got = ::pread(memory_.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return error_in(text);
}

std::string error_in(std::string_view text) {
  std::string said(text);
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("message")) {
    const nlohmann::json& message = json["message"];
    const nlohmann::json& innermost =
        message.is_object() && message.contains("message") ? message["message"] : message;
    if (innermost.is_string()) said = innermost.get<std::string>();
  }
  said = said.substr(0, said.find('\n'));
  return excerpt(said, kMostSaid);
}

}  // namespace tutti::launch
