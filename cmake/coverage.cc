// Linked into every program of a build with TUTTI_COVERAGE: ranks that are forked for a test end by
// _exit, which would forget what they ran.
extern "C" {
void __gcov_dump();
[[noreturn]] void __real__exit(int code);

[[noreturn]] void __wrap__exit(int code) {
  __gcov_dump();
  __real__exit(code);
}
}
