// The library that is missing when the plugin that needs it is loaded; also a library that is no
// backend.
extern "C" [[gnu::visibility("default")]] int tutti_test_absent() { return 0; }
