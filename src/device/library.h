// A shared library that is opened while the program runs, because most programs do without it.
#pragma once

#include <string>
#include <string_view>

namespace tutti::device {

/// One that is open stays so until the process ends: it may have threads and exit handlers.
class Library {
 public:
  /// What it is for, and where it comes from, for errors.
  struct About {
    std::string_view what;     ///< "CUDA's driver library"
    std::string_view setting;  ///< "TUTTI_CUDA_LIBRARY", which names another file
    std::string_view remedy;   ///< "install NVIDIA's driver (on Debian: apt install libcuda1)"
  };

  /// `file`: as for dlopen. One that the program has opened already is preferred.
  /// Errors  kUnsupported: it cannot be opened; names the file, the reason and the remedy.
  Library(const std::string& file, const About& about);

  const std::string& file() const noexcept { return file_; }
  /// Null: the library is of a version without it.
  template <class Function>
  Function* find(const char* symbol) const noexcept {
    return reinterpret_cast<Function*>(address(symbol));
  }
  /// Errors  kUnsupported: the library has no such function, so it is too old or another one.
  template <class Function>
  Function* need(const char* symbol) const {
    return reinterpret_cast<Function*>(needed_address(symbol));
  }

 private:
  void* address(const char* symbol) const noexcept;
  void* needed_address(const char* symbol) const;

  const std::string file_;
  const About about_;
  void* handle_ = nullptr;
};

}  // namespace tutti::device
