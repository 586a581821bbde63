#include "device/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti::device {

Library::Library(const std::string& file, const About& about) : file_(file), about_(about) {
  handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle_ == nullptr) handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ != nullptr) return;
  const char* const reason = ::dlerror();
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} cannot be opened: {}; {}, or name its file in {}", about.what,
                          reason != nullptr ? reason : file.c_str(), about.remedy, about.setting));
}

void* Library::address(const char* symbol) const noexcept { return ::dlsym(handle_, symbol); }

void* Library::needed_address(const char* symbol) const {
  void* const found = address(symbol);
  if (found != nullptr) return found;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} {} has no {}: it is too old, or another library; {}, or name its "
                          "file in {}",
                          about_.what, file_, symbol, about_.remedy, about_.setting));
}

}  // namespace tutti::device
