#include "c10d/error.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/debug.h>

#include <string_view>
#include <utility>

namespace tutti::python {
namespace {

/// Advice of the library, and what Python has instead.
constexpr std::pair<std::string_view, std::string_view> kAdvice[] = {
    {"InitOptions::timeout or TUTTI_TIMEOUT", "init_process_group(timeout=)"},
    {"InitOptions::timeout", "init_process_group(timeout=)"},
    {"sendrecv, batch or tutti::async", "batch_isend_irecv or async_op=True"},
    {", or take it back with Work::cancel", ""},
    {"see the setting deadlock", "set TUTTI_DEADLOCK=off"},
};

/// Where the program is to blame, and messages do not name its lines.
bool lacks_lines(const Error& error) {
  const bool is_of_program = error.code() == ErrorCode::kTimeout ||
                             error.code() == ErrorCode::kCollectiveMismatch ||
                             error.code() == ErrorCode::kDeadlock;
  return is_of_program && error.context().op != "init" &&
         c10d::debug_level() == c10d::DebugLevel::Off;
}

/// "tutti: Timed out (kTimeout): ...": users search texts for these words, as gloo and NCCL say it.
std::string text_of(const Error& error) {
  const std::string code(name_of(error.code()));
  return "tutti: " + (error.code() == ErrorCode::kTimeout ? "Timed out (" + code + ")" : code) +
         ": " + words_of(error);
}

/// No place in the sources: the text says which operation it was.
template <class Exception>
std::exception_ptr made(const Error& error) {
  return std::make_exception_ptr(Exception(c10::SourceLocation{"", "tutti", 0}, text_of(error)));
}

}  // namespace

std::string words_of(const Error& error) {
  std::string words = error.what();
  for (const auto& [advice, instead] : kAdvice) {
    const auto at = words.find(advice);
    if (at != words.npos) words.replace(at, advice.size(), instead);
  }
  if (lacks_lines(error)) words += ". TORCH_DISTRIBUTED_DEBUG=INFO names the lines of Python";
  return words;
}

std::exception_ptr as_torch(const Error& error) {
  if (error.code() == ErrorCode::kInvalidArgument) return made<c10::ValueError>(error);
  if (error.code() == ErrorCode::kUnsupported) return made<c10::NotImplementedError>(error);
  return made<c10::DistBackendError>(error);
}

std::exception_ptr as_torch_of_meeting(const Error& error) {
  if (error.code() == ErrorCode::kTimeout) return made<c10::DistStoreError>(error);
  if (error.code() == ErrorCode::kSystem) return made<c10::DistNetworkError>(error);
  return as_torch(error);
}

}  // namespace tutti::python
