// A plugin of an interface that was never there.
extern "C" {
[[gnu::visibility("default")]] const char* tutti_backend_abi() { return "tutti-backend 0"; }
[[gnu::visibility("default")]] const void* tutti_backend_library() { return nullptr; }
[[gnu::visibility("default")]] void tutti_backend_about() {}
[[gnu::visibility("default")]] void* tutti_backend_make() { return nullptr; }
}
