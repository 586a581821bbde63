# Installed by `cmake --install`; filled in by the packaging work.
