// Whatever is in the file of a store: it is read, or refused in words. Who comes later reads what
// was written behind it.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "fuzz/input.h"
#include "tutti/error.h"
#include "tutti/store.h"

namespace {

using namespace tutti;
using std::chrono::milliseconds;

constexpr milliseconds kNow{0};

void use(const std::string& path) {
  const auto store = make_file_store(path);
  const std::int64_t before = store->num_keys(kNow);
  fuzz::require(before >= 0);
  const bool is_new = !store->try_get("mine", kNow);
  store->set("mine", "value", kNow);
  const auto later = make_file_store(path);
  fuzz::require(later->get("mine", kNow) == "value");
  fuzz::require(later->num_keys(kNow) == before + (is_new ? 1 : 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  static const std::string path =
      std::filesystem::temp_directory_path() / ("tutti_fuzz_store_" + std::to_string(::getpid()));
  std::ofstream(path, std::ios::binary) << fuzz::Input(data, byte_count).text();
  fuzz::take_or_refuse([] { use(path); });
  std::filesystem::remove(path);
  return 0;
}
