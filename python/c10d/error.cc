#include "c10d/error.h"

#include <c10/util/Exception.h>

#include <string>

namespace tutti::python {
namespace {

/// "tutti: Timed out (kTimeout): ...": users search texts for these words, as gloo and NCCL say it.
std::string text_of(const Error& error) {
  const std::string code(name_of(error.code()));
  return "tutti: " + (error.code() == ErrorCode::kTimeout ? "Timed out (" + code + ")" : code) +
         ": " + error.what();
}

/// No place in the sources: the text says which operation it was.
template <class Exception>
std::exception_ptr made(const Error& error) {
  return std::make_exception_ptr(Exception(c10::SourceLocation{"", "tutti", 0}, text_of(error)));
}

}  // namespace

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
