// For python_test.py: the net of the tests.
#include "evaluate.h"
#include "net.h"

int main() {
  return tutti::checkpoint::serve([] { return tutti::checkpoint::Net(); });
}
