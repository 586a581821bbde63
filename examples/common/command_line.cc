#include "common/command_line.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace {

[[noreturn]] void misused(const CommandLine& line, const std::string& what) {
  std::fprintf(stderr, "%s: %s; --help lists the options\n", line.program, what.c_str());
  std::exit(2);
}

double positive(const CommandLine& line, const std::string& name, const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (*end == '\0' && number > 0 && number < 1e15) return number;
  misused(line, name + " wants a number above 0, not '" + value + "'");
}

std::size_t positive_whole(const CommandLine& line, const std::string& name,
                           const std::string& value) {
  const double number = positive(line, name, value);
  const auto whole = static_cast<std::size_t>(number);
  if (static_cast<double>(whole) == number) return whole;
  misused(line, name + " wants a whole number, not '" + value + "'");
}

std::string one_of(const CommandLine& line, const std::string& name, const std::string& value,
                   const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), value) != words.end()) return value;
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : " or ") + word;
  misused(line, name + " wants " + all + ", not '" + value + "'");
}

void assign(const CommandLine& line, const std::string& name, const std::string& value) {
  const auto option = line.options.find(name);
  if (option == line.options.end()) misused(line, "unknown option " + name);
  const OptionTarget& target = option->second;
  if (auto* const text = std::get_if<std::string*>(&target)) {
    **text = value;
  } else if (auto* const whole = std::get_if<std::size_t*>(&target)) {
    **whole = positive_whole(line, name, value);
  } else if (auto* const choice = std::get_if<Choice>(&target)) {
    *choice->word = one_of(line, name, value, choice->of);
  } else {
    *std::get<double*>(target) = positive(line, name, value);
  }
}

}  // namespace

void parse_command_line(int argc, char** argv, CommandLine line, TrainingArguments* arguments) {
  line.options.insert({{"--batch", &arguments->batch},
                       {"--lr", &arguments->learning_rate},
                       {"--seed", &arguments->seed},
                       {"--device", Choice{&arguments->device, {"cpu", "cuda"}}},
                       {"--checkpoint", &arguments->checkpoint},
                       {"--checkpoint-every", &arguments->checkpoint_every}});
  arguments->command = argv[0];
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      line.print_help();
      std::exit(0);
    }
    if (name == "--resume") {
      arguments->resume = true;
      continue;
    }
    if (i + 1 == argc) misused(line, name + " is unknown or wants a value");
    const std::string value = argv[++i];
    arguments->command += " " + name + " " + value;
    assign(line, name, value);
  }
  if (arguments->checkpoint.empty() && (arguments->resume || arguments->checkpoint_every != 0)) {
    misused(line, "--resume and --checkpoint-every want --checkpoint FILE");
  }
  // Started again after a failure: where it was, if it had come to saving.
  const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (restarts != nullptr && std::atoi(restarts) > 0 && !arguments->checkpoint.empty()) {
    arguments->resume = arguments->resume || std::filesystem::exists(arguments->checkpoint);
  }
}
