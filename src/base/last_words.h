// How a rank ends that does not catch an Error: one line and exit code 1, no core file.
#pragma once

#include <string>

namespace tutti {

/// Installs a terminate handler that treats an uncaught tutti::Error so; everything else goes to
/// the handler that was there. For ranks of `tutti run` only: its post-mortem tells the rest, and
/// the Error itself where it finds it in `error_file` (TORCHELASTIC_ERROR_FILE; may be empty).
/// Calling it again changes nothing.
void install_last_words(const std::string& error_file);

}  // namespace tutti
