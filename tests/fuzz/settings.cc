// Whatever stands in the environment of a rank, lines NAME=VALUE, and in the settings of a program,
// lines +name=value: who this process is and what holds for it is known, or refused in words.
#include <cstdint>
#include <string>

#include "base/config.h"
#include "fuzz/input.h"
#include "launch/allocation.h"
#include "launch/placement.h"
#include "net/security.h"
#include "rendezvous/identity.h"
#include "tutti/error.h"

namespace {

using namespace tutti;
using fuzz::require;

void identify(const Environment& environment) {
  const rendezvous::Identity who = rendezvous::identify(environment);
  require(who.world_size >= 1 && who.world_size <= rendezvous::kMaxWorldSize);
  require(who.rank >= 0 && who.rank < who.world_size);
  require(who.master_port >= 0 && who.master_port <= 65535);
  (void)rendezvous::init_of(who);
}

void launch_below(const Environment& environment) {
  const auto placement = launch::place_on_host({0, 1}, "here", std::vector<launch::Binding>(2));
  (void)launch::thread_defaults(environment, 2, 2);
  const int port = launch::master_port(environment);
  const Environment rank = launch::rank_variables(environment, placement, 1,
                                                  {.agent = "@agent",
                                                   .master_address = "127.0.0.1",
                                                   .master_port = port,
                                                   .run_id = "job",
                                                   .role = "default"});
  require(rank.at("RANK") == "1" && rank.at("WORLD_SIZE") == "2");
  identify(rank);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  fuzz::log_nothing();
  Environment environment;
  Settings options;
  for (const std::string& line : fuzz::Input(data, byte_count).lines()) {
    const std::size_t sign = line.find('=');
    if (sign == std::string::npos || sign == 0) continue;
    const std::string value = line.substr(sign + 1);
    if (line[0] == '+') {
      options[line.substr(1, sign - 1)] = value;
    } else {
      environment[line.substr(0, sign)] = value;
    }
  }
  const auto take = [](const auto& call) {
    fuzz::take_or_refuse(call, {ErrorCode::kInvalidArgument, ErrorCode::kUnsupported});
  };
  take([&] { require(!Config(options, environment).describe().empty()); });
  take([&] { identify(environment); });
  take([&] { launch_below(environment); });
  take([&] {
    const auto allocation = launch::find_allocation(environment);
    require(!allocation || (allocation->ranks >= 1 && !allocation->source.empty()));
  });
  (void)unknown_variables(environment);
  return 0;
}
