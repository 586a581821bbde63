#include "launch/error_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "launch/lines.h"
#include "net/process_info.h"

namespace tutti::launch {
namespace {

/// Whole call stacks stand there beside the message.
constexpr off_t kMostRead = off_t{1} << 20;
constexpr std::size_t kMostSaid = 400;

/// Finds the string "message", or the one of that name in an object of that name, and stops there:
/// what follows may be anything, or cut.
class MessageFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::optional<std::string> found;

  bool key(std::string& name) override {
    is_meant_ = depth_ == depth_of_message_ && name == "message";
    return true;
  }
  bool string(std::string& value) override {
    if (is_meant_) found = value;
    return !std::exchange(is_meant_, false);
  }
  bool start_object(std::size_t) override {
    const bool is_outermost = depth_ == 0;
    ++depth_;
    if ((is_meant_ || is_outermost) && depth_ <= 2) depth_of_message_ = depth_;
    return pass();
  }
  bool end_object() override {
    --depth_;
    depth_of_message_ = std::min(depth_of_message_, depth_);
    return pass();
  }
  bool start_array(std::size_t) override {
    ++depth_;
    return pass();
  }
  bool end_array() override {
    --depth_;
    return pass();
  }
  bool null() override { return pass(); }
  bool boolean(bool) override { return pass(); }
  bool number_integer(number_integer_t) override { return pass(); }
  bool number_unsigned(number_unsigned_t) override { return pass(); }
  bool number_float(number_float_t, const string_t&) override { return pass(); }
  bool binary(binary_t&) override { return pass(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  bool pass() noexcept {
    is_meant_ = false;
    return true;
  }
  int depth_ = 0;             ///< of objects and arrays
  int depth_of_message_ = 0;  ///< of the object whose "message" is meant
  bool is_meant_ = false;     ///< what comes next
};

}  // namespace

ErrorFile::ErrorFile() : memory_(::memfd_create("tutti-error-file", MFD_CLOEXEC)) {}

std::string ErrorFile::path() const {
  if (!memory_ || !net::has_own_proc()) return "";  // else it would be a file of somebody else's
  return fmt::format("/proc/{}/fd/{}", ::getpid(), memory_.get());
}

std::string ErrorFile::said() const {
  struct stat status = {};
  if (!memory_ || ::fstat(memory_.get(), &status) != 0) return "";
  std::string text(static_cast<std::size_t>(std::min(status.st_size, kMostRead)), '\0');
  const ssize_t got = ::pread(memory_.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return error_in(text);
}

std::string error_in(std::string_view text) {
  MessageFinder finder;
  nlohmann::json::sax_parse(text, &finder, nlohmann::json::input_format_t::json, /*strict=*/false);
  std::string said = finder.found.value_or(std::string(text));
  said = said.substr(0, said.find('\n'));
  return excerpt(said, kMostSaid);
}

}  // namespace tutti::launch
