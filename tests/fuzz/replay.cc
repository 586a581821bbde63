// A fuzzer as an ordinary test: replay CORPUS/ gives it every input of the folder, all beginnings
// of each, and each with one byte changed.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count);

namespace {

using Bytes = std::vector<std::uint8_t>;

/// In memory of exactly that size: AddressSanitizer sees a byte behind it.
void play(const Bytes& bytes, std::size_t byte_count) {
  const Bytes input(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(byte_count));
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

void play_around(Bytes bytes) {
  for (std::size_t length = 0; length <= bytes.size(); ++length) play(bytes, length);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const std::uint8_t change : {0x01, 0x80, 0xff}) {
      bytes[at] ^= change;
      play(bytes, bytes.size());
      bytes[at] ^= change;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  if (argc == 2) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
      std::ifstream file(entry.path(), std::ios::binary);
      play_around(Bytes(std::istreambuf_iterator<char>(file), {}));
      ++count;
    }
  }
  std::printf("%d inputs\n", count);
  return count > 0 ? 0 : 1;
}
