// How a rank ends that does not catch an Error: one line and exit code 1, no core file.
#pragma once

namespace tutti {

/// Installs a terminate handler that treats an uncaught tutti::Error so; everything else goes to
/// the handler that was there. For ranks of `tutti run` only: its post-mortem tells the rest.
/// Calling it again changes nothing.
void install_last_words();

}  // namespace tutti
