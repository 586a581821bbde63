// A program that starts its ranks itself: first two that send and receive, then two that add. No
// launcher: ./spawn, or with the way in which ranks are made: ./spawn --start fork
#include <tutti/tutti.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

/// Python's start method "spawn", a fresh process for each rank, is exec here.
tutti::Start parse(int argc, char** argv) {
  if (argc == 1) return tutti::Start::exec;
  const std::string_view word = argc == 3 && argv[1] == std::string_view("--start") ? argv[2] : "";
  using tutti::Start;
  for (const Start start : {Start::automatic, Start::fork, Start::exec, Start::thread}) {
    if (word == name_of(start)) return start;
  }
  throw std::invalid_argument("usage: spawn [--start automatic|fork|exec|thread]");
}

std::string text_of(const std::vector<float>& values) {
  std::string text;
  char number[16];
  for (const float value : values) {
    std::snprintf(number, sizeof(number), "%s%.0f.", text.empty() ? "" : ", ", value);
    text += number;
  }
  return "tensor([" + text + "])";
}

/// Rank 0 adds one and sends; rank 1 receives.
void send_recv(int rank) {
  auto world = tutti::init_process_group();
  std::vector<float> x = {0};
  if (rank == 0) {
    x[0] += 1;
    world.send(x, 1);
  } else {
    std::printf("init tensor %s\n", text_of(x).c_str());
    world.recv(x, 0);
  }
  std::printf("Rank: %d, has data %s\n", rank, text_of(x).c_str());
}

/// Both ranks add their vectors in a group.
void all_reduce(int rank) {
  auto world = tutti::init_process_group();
  auto group = world.new_group({0, 1});
  std::vector<float> x = {1, 2, 3};
  if (rank == 1) x = {4, 5, 6};
  std::printf("Rank: %d, random tensor: %s\n", rank, text_of(x).c_str());
  group.all_reduce(x, tutti::ReduceOp::sum);
  std::printf("Rank: %d, has data: %s\n", rank, text_of(x).c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  const tutti::Start start = parse(argc, argv);
  // Each spawn is a job of its own; join throws what the first rank to fail has failed with.
  tutti::spawn(2, send_recv, {.start = start}).join();
  tutti::spawn(2, all_reduce, {.start = start}).join();
} catch (const std::exception& failure) {
  std::fprintf(stderr, "spawn: %s\n", failure.what());
  return 1;
}
