#include "checkpoint.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace {

std::size_t read_number(torch::serialize::InputArchive& archive, const std::string& name) {
  c10::IValue number;
  archive.read(name, number);
  return static_cast<std::size_t>(number.toInt());
}

torch::Generator random_numbers() { return at::globalContext().defaultGenerator(torch::kCPU); }

}  // namespace

void save_checkpoint(const std::string& file, const RunState& state, tutti::ProcessGroup& world) {
  const torch::Tensor own = random_numbers().get_state();
  const torch::Tensor all = torch::empty({world.world_size(), own.numel()}, torch::kByte);
  world.gather(own, all);
  if (world.rank() == 0) {
    torch::serialize::OutputArchive archive, net, optimizer, sampler;
    archive.write("epoch", c10::IValue(static_cast<std::int64_t>(state.epoch)));
    archive.write("step", c10::IValue(static_cast<std::int64_t>(state.step)));
    archive.write("random", all);
    state.net.save(net);
    archive.write("net", net);
    state.optimizer.save(optimizer);
    archive.write("optimizer", optimizer);
    state.sampler.save(sampler);
    archive.write("sampler", sampler);
    const std::string draft = file + ".part";
    archive.save_to(draft);
    if (std::rename(draft.c_str(), file.c_str()) != 0) {
      throw std::runtime_error(file + ": cannot be written: " + std::strerror(errno));
    }
  }
  world.barrier();  // whoever returns may rely on the file
}

void load_checkpoint(const std::string& file, RunState* state, const tutti::ProcessGroup& world) {
  if (!std::filesystem::exists(file)) {
    throw std::runtime_error(file + ": no such checkpoint; leave out --resume to start anew");
  }
  torch::serialize::InputArchive archive, net, optimizer, sampler;
  torch::Tensor all;
  try {
    archive.load_from(file);
    state->epoch = read_number(archive, "epoch");
    state->step = read_number(archive, "step");
    archive.read("random", all);
    archive.read("net", net);
    archive.read("optimizer", optimizer);
    archive.read("sampler", sampler);
    state->net.load(net);
    state->optimizer.load(optimizer);
  } catch (const c10::Error& failure) {
    throw std::runtime_error(
        file + ": is no checkpoint of this program: " + failure.what_without_backtrace());
  }
  state->sampler.load(sampler);  // says what does not fit: the data set, the number of ranks
  random_numbers().set_state(all[world.rank()].clone());
}
