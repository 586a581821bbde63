// Whatever pickle stands in a checkpoint: a state_dict, every tensor of it inside of its storage,
// or refused in words. The first byte says how many bytes a storage has.
#include "checkpoint/pickled_state.h"

#include "fuzz/stored_state.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  using namespace tutti;
  fuzz::Input input(data, byte_count);
  const std::uint64_t storage_bytes = input.byte();
  const auto bytes = input.piece(SIZE_MAX);
  const auto find = [&](std::string_view key) -> std::optional<checkpoint::Extent> {
    if (key.size() > 2) return std::nullopt;
    return checkpoint::Extent{0, storage_bytes};
  };
  fuzz::take_or_refuse([&] {
    const auto pickle = checkpoint::read_pickle(bytes);
    for (const auto& key : {std::optional<std::string>("model"), std::optional<std::string>()}) {
      fuzz::check_state(checkpoint::state_of(pickle, key, find), storage_bytes);
    }
  });
  return 0;
}
