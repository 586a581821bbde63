// Reads one element past a staging buffer, or adds past the largest int: ASan and UBSan must
// report.
#include <climits>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  std::vector<int> staging(8, 1);
  if (argc > 1 && std::strcmp(argv[1], "address") == 0) {
    return staging.data()[7 + argc - 1];  // planted: index 8 of 8
  }
  int largest = INT_MAX - 1 + argc;
  return largest + 1 > 0 ? 0 : 1;  // planted: signed overflow
}
