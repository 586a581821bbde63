// How a rank ends that does not catch an Error: one line and exit code 1, no core file.
#pragma once

#include "base/config.h"

namespace tutti {

/// Installs a terminate handler that treats an uncaught tutti::Error so; everything else goes to
/// the handler that was there. For ranks of `tutti run` only: its post-mortem tells the rest, and
/// the Error itself where it finds it in the file that TORCHELASTIC_ERROR_FILE names, if it is set.
/// They have it from the loading of the library on; init puts it over a handler of the program's.
void install_last_words(const Environment& environment);

}  // namespace tutti
