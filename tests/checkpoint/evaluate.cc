// Models for python_test.py: does what lines on stdin say, words between tabs. Its argument is the
// model: "net", of the tests, or "resnet", of example 08.
#include <torch/torch.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "../../examples/08_resnet/resnet18.h"
#include "net.h"
#include "tutti/torch.h"

namespace tutti::checkpoint {
namespace {

using Tensors = torch::OrderedDict<std::string, torch::Tensor>;
using Words = std::vector<std::string>;

/// FROM TO
void copy(const Words& words) { save_state_dict(read_state_dict(words.at(0)), words.at(1)); }

/// FILE INPUTS OUTPUTS SAVED [KEY]: loads FILE, writes the model to SAVED, and to OUTPUTS as "y"
/// what it makes of "x" in INPUTS.
template <class Net>
void evaluate(Net net, const Words& words) {
  LoadStateOptions options;
  if (words.size() == 5) options.key = words[4];
  load_state_dict(*net, words.at(0), options);
  save_state_dict(*net, words.at(3));
  net->eval();
  const torch::NoGradGuard no_grad;
  Tensors outputs;
  outputs.insert("y", net->forward(read_state_dict(words.at(1))["x"]));
  save_state_dict(outputs, words.at(2));
}

/// Answers each line with the error, if there is one, and a line of its own as the end.
template <class MakeNet>
int serve(const MakeNet& make_net) {
  torch::set_num_threads(1);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream rest(line);
    Words words;
    for (std::string word; std::getline(rest, word, '\t');) words.push_back(word);
    try {
      words.size() == 2 ? copy(words) : evaluate(make_net(), words);
    } catch (const Error& error) {
      std::cout << error.what() << '\n';
    }
    std::cout << "== done" << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace tutti::checkpoint

int main(int argc, char** argv) {
  const std::string model = argc == 2 ? argv[1] : "";
  if (model == "net") return tutti::checkpoint::serve([] { return tutti::checkpoint::Net(); });
  if (model == "resnet") return tutti::checkpoint::serve([] { return ResNet18(1, 10); });
  std::cerr << "evaluate: give net or resnet\n";
  return 2;
}
