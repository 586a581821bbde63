// An example as the function of ranks that a program starts itself: its main, under another name.
//
//     spawned_one_to_many fork|exec|thread RANKS [FLAGS OF THE EXAMPLE]
#include <tutti/tutti.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string_view>

extern "C" int example_main(int argc, char** argv);  // of examples/*/main.cc, renamed by objcopy

namespace {

tutti::Start parse(std::string_view word) {
  using tutti::Start;
  for (const Start start : {Start::fork, Start::exec, Start::thread}) {
    if (word == name_of(start)) return start;
  }
  throw std::invalid_argument("the first word is fork, exec or thread");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) throw std::invalid_argument("the words are START RANKS [FLAGS]");
  const auto run = [argc, argv](int) { return example_main(argc - 2, argv + 2); };
  tutti::spawn(std::atoi(argv[2]), run, {.start = parse(argv[1])}).join();
} catch (const std::exception& failure) {
  std::fprintf(stderr, "spawned_example: %s\n", failure.what());
  return 1;
}
