#include "common/checkpoint.h"

#include <tutti/tutti.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

#include "common/file.h"

namespace {

std::atomic<bool> stop_requested = false;

std::size_t read_number(torch::serialize::InputArchive& archive, const std::string& name) {
  c10::IValue number;
  archive.read(name, number);
  return static_cast<std::size_t>(number.toInt());
}

torch::Device device_of_net(const torch::nn::Module& net) { return net.parameters()[0].device(); }

torch::Generator random_numbers(torch::Device device) {
  return at::globalContext().defaultGenerator(device);
}

/// Of the CPU, and behind it of the device that the model is on.
torch::Tensor random_state(torch::Device device) {
  const torch::Tensor of_cpu = random_numbers(torch::kCPU).get_state();
  if (device.is_cpu()) return of_cpu;
  return torch::cat({of_cpu, random_numbers(device).get_state()});
}

/// What was saved on the CPU says nothing of a device.
void set_random_state(const torch::Tensor& state, torch::Device device) {
  const std::int64_t of_cpu = random_numbers(torch::kCPU).get_state().numel();
  random_numbers(torch::kCPU).set_state(state.narrow(0, 0, of_cpu).clone());
  const std::int64_t rest = state.numel() - of_cpu;
  if (device.is_cpu() || rest == 0) return;
  random_numbers(device).set_state(state.narrow(0, of_cpu, rest).clone());
}

std::vector<std::vector<std::int64_t>> shapes(const torch::nn::Module& net) {
  std::vector<std::vector<std::int64_t>> found;
  for (const torch::Tensor& parameter : net.parameters()) found.push_back(parameter.sizes().vec());
  return found;
}

void save_curve(torch::serialize::OutputArchive* archive, const LossCurve& curve) {
  std::vector<double> held_out;
  for (const auto& point : curve.held_out) {
    held_out.insert(held_out.end(), {point.step, point.loss});
  }
  archive->write("training_loss", torch::tensor(curve.training, torch::kDouble));
  archive->write("held_out_loss", torch::tensor(held_out, torch::kDouble));
}

void load_curve(torch::serialize::InputArchive* archive, LossCurve* curve) {
  const auto numbers = [&](const char* name) {
    torch::Tensor tensor;
    archive->read(name, tensor);
    tensor = tensor.to(torch::kCPU, torch::kDouble).contiguous();
    return std::vector<double>(tensor.data_ptr<double>(),
                               tensor.data_ptr<double>() + tensor.numel());
  };
  curve->training = numbers("training_loss");
  curve->held_out.clear();
  const std::vector<double> held_out = numbers("held_out_loss");
  for (std::size_t i = 1; i < held_out.size(); i += 2) {
    curve->held_out.push_back({held_out[i - 1], held_out[i]});
  }
}

}  // namespace

void save_checkpoint(const std::string& file, const RunState& state, tutti::ProcessGroup& world) {
  const torch::Tensor own = random_state(device_of_net(state.net));
  const torch::Tensor all = torch::empty({world.world_size(), own.numel()}, torch::kByte);
  world.gather(own, all);
  if (world.rank() == 0) {
    torch::serialize::OutputArchive archive, net, optimizer, sampler;
    archive.write("epoch", c10::IValue(static_cast<std::int64_t>(state.epoch)));
    archive.write("step", c10::IValue(static_cast<std::int64_t>(state.step)));
    archive.write("batch", c10::IValue(static_cast<std::int64_t>(state.batch)));
    archive.write("random", all);
    state.net.save(net);
    archive.write("net", net);
    state.optimizer.save(optimizer);
    archive.write("optimizer", optimizer);
    state.sampler.save(sampler);
    archive.write("sampler", sampler);
    if (state.curve != nullptr) save_curve(&archive, *state.curve);
    std::string bytes;
    archive.save_to([&bytes](const void* data, std::size_t count) {
      bytes.append(static_cast<const char*>(data), count);
      return count;
    });
    write_file(file, bytes);
  }
  world.barrier();  // whoever returns may rely on the file
}

void load_checkpoint(const std::string& file, RunState* state, const tutti::ProcessGroup& world) {
  if (!std::filesystem::exists(file)) {
    throw std::runtime_error(file + ": no such checkpoint; leave out --resume to start anew");
  }
  torch::serialize::InputArchive archive, net, optimizer, sampler;
  torch::Tensor all;
  const auto shapes_here = shapes(state->net);
  std::size_t batch = 0;
  try {
    archive.load_from(file, device_of_net(state->net));
    state->epoch = read_number(archive, "epoch");
    state->step = read_number(archive, "step");
    batch = read_number(archive, "batch");
    archive.read("random", all);
    archive.read("net", net);
    archive.read("optimizer", optimizer);
    archive.read("sampler", sampler);
    state->net.load(net);
    state->optimizer.load(optimizer);
    if (state->curve != nullptr) load_curve(&archive, state->curve);
  } catch (const c10::Error& failure) {
    throw std::runtime_error(
        file + ": is no checkpoint of this program: " + failure.what_without_backtrace());
  }
  if (shapes(state->net) != shapes_here) {  // loading a module takes whatever shapes there are
    throw std::runtime_error(file + ": is of a model with other shapes than this one");
  }
  if (batch != state->batch) {  // steps would mean something else
    throw std::runtime_error(file + ": was saved with --batch " + std::to_string(batch) +
                             "; go on with that, not with " + std::to_string(state->batch));
  }
  state->sampler.load(sampler);  // says what does not fit: the data set, the number of ranks
  set_random_state(all[world.rank()].cpu(), device_of_net(state->net));
}

void end_when_asked(const TrainingArguments& arguments) {
  if (!arguments.checkpoint.empty()) tutti::on_terminate([] { stop_requested = true; });
}

void resume_if_asked(const TrainingArguments& arguments, RunState* state,
                     const tutti::ProcessGroup& world) {
  if (!arguments.resume) return;
  load_checkpoint(arguments.checkpoint, state, world);
  if (world.rank() == 0) std::printf("going on after step %zu\n", state->step);
}

bool saved_and_ending(const TrainingArguments& arguments, const RunState& state,
                      tutti::ProcessGroup& world) {
  if (arguments.checkpoint.empty()) return false;
  if (arguments.checkpoint_every != 0 && state.step % arguments.checkpoint_every == 0) {
    save_checkpoint(arguments.checkpoint, state, world);
  }
  // A signal reaches the ranks at different steps: they stop after one they agree on.
  const auto mine = static_cast<std::uint8_t>(stop_requested.load());
  if (world.all_reduce_value(mine, {.op = tutti::ReduceOp::max}) == 0) return false;
  save_checkpoint(arguments.checkpoint, state, world);
  if (world.rank() != 0) return true;
  const std::string launcher =
      world.world_size() > 1 ? "tutti run -n " + std::to_string(world.world_size()) + " " : "";
  std::printf("saved after step %zu; go on with: %s%s --resume\n", state.step, launcher.c_str(),
              arguments.command.c_str());
  std::fflush(stdout);
  return true;
}
