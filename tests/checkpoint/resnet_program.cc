// For python_test.py: the model of example 08.
#include "../../examples/08_resnet/resnet18.h"
#include "evaluate.h"

int main() {
  return tutti::checkpoint::serve([] { return ResNet18(1, 10); });
}
