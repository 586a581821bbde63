// A plugin whose library is not there.
extern "C" int tutti_test_absent();
extern "C" [[gnu::visibility("default")]] int tutti_test_needs() { return tutti_test_absent(); }
