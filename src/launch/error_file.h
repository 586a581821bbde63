// Where a program says why it fails, in torchrun's way: in a file that TORCHELASTIC_ERROR_FILE
// names, as Python's torch.distributed.elastic.multiprocessing.errors.record does.
//
// The file is memory of this process, which its ranks reach by /proc while it lives: nothing stays
// on a disk, and nothing has to be taken away.
#pragma once

#include <string>
#include <string_view>

#include "net/fd.h"

namespace tutti::launch {

class ErrorFile {
 public:
  /// Without a path if the system gives no memory for it.
  ErrorFile();
  /// For this user's processes; "" : there is none.
  std::string path() const;
  /// What has been said, in a line: "ValueError: no data"; "" : nothing. Of the first MiB.
  std::string said() const;

 private:
  net::Fd memory_;
};

/// Of what stands in such a file: torch's {"message": {"message": ...}}, also if it is cut behind
/// that, or any text.
std::string error_in(std::string_view text);

}  // namespace tutti::launch
