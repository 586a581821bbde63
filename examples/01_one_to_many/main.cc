// Rank 0 sends a number to every other rank in turn. Run it with: tutti run -n 4 ./one_to_many
#include <tutti/tutti.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

namespace {

struct Flags {
  std::string backend;  // empty: native
  int local_rank = 0;   // older launchers pass it; the identity comes from the environment
};

/// `--name value` and `--name=value`, like argparse.
bool parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    if (equals == std::string_view::npos && i + 1 == argc) return false;
    const std::string value(equals == std::string_view::npos ? std::string_view(argv[++i])
                                                             : argument.substr(equals + 1));
    if (name == "--backend") {
      flags->backend = value;
    } else if (name == "--local_rank" || name == "--local-rank") {
      flags->local_rank = std::stoi(value);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) try {
  Flags flags;
  if (!parse(argc, argv, &flags)) {
    std::fprintf(stderr, "usage: one_to_many [--backend NAME] [--local_rank INT]\n");
    return 2;
  }
  auto world = tutti::init_process_group({.backend = flags.backend});
  float x = 0;
  if (world.rank() == 0) {
    for (int to = 1; to < world.world_size(); ++to) {
      world.send(x, to);
      std::printf("worker_0 sent data to Rank %d\n", to);
    }
  } else {
    world.recv(x, 0);
    std::printf("worker_%d has received data from rank 0\n", world.rank());
  }
} catch (const std::exception& failure) {
  std::fprintf(stderr, "one_to_many: %s\n", failure.what());
  return 1;
}
