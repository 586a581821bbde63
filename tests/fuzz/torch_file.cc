// Whatever is in a file that is said to be a checkpoint: a state_dict, every tensor of it inside of
// the file, or refused in words. The corpus has zips of torch.save.
#include "fuzz/stored_state.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  tutti::fuzz::check_file(std::as_bytes(std::span(data, byte_count)));
  return 0;
}
