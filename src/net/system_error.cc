#include "net/system_error.h"

#include <fmt/format.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace tutti::net {
namespace {

std::string_view advice(int error_number) {
  switch (error_number) {
    case EMFILE:
      return "; this process may open no more files: raise `ulimit -n`";
    case ENFILE:
      return "; this machine has no more open files: raise fs.file-max";
    case ENOMEM:
    case ENOSPC:
      return "; memory is short: raise the limit of the container or use fewer ranks";
    case EACCES:
    case EPERM:
      return "; a sandbox or another user may be in the way";
    default:
      return "";
  }
}

}  // namespace

Error system_error(std::string_view what, int error_number) {
  const std::string text = std::generic_category().message(error_number);
  return Error(ErrorCode::kSystem,
               fmt::format("{}: {} (errno {}){}", what, text, error_number, advice(error_number)));
}

}  // namespace tutti::net
