// Ranks 0 and 1 add their vectors in a group of their own. Run it with: tutti run -n 2 ./all_reduce
#include <tutti/tutti.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

std::string text_of(const std::vector<float>& values) {
  std::string text;
  char number[16];
  for (const float value : values) {
    std::snprintf(number, sizeof(number), "%s%.0f.", text.empty() ? "" : ", ", value);
    text += number;
  }
  return "tensor([" + text + "])";
}

}  // namespace

int main() try {
  auto world = tutti::init_process_group();
  if (world.world_size() < 2) {
    std::fprintf(stderr, "all_reduce: needs at least 2 ranks\n");
    return 2;
  }
  auto group = world.new_group({0, 1});
  if (!group.is_member()) return 0;  // ranks 2, 3, ... have nothing to do

  std::vector<float> x = {1, 2, 3};
  if (group.rank() == 1) x = {4, 5, 6};
  std::printf("Rank: %d, random tensor: %s\n", world.rank(), text_of(x).c_str());
  group.all_reduce(x, tutti::ReduceOp::sum);
  std::printf("Rank: %d, has data: %s\n", world.rank(), text_of(x).c_str());
} catch (const std::exception& failure) {
  std::fprintf(stderr, "all_reduce: %s\n", failure.what());
  return 1;
}
