#include "rendezvous/claim.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/random.h"
#include "net/process_info.h"

namespace tutti::rendezvous {
namespace {

constexpr const char* kNowhere = "?";  // a word must stand there

bool is_elsewhere(const Claim& a, const Claim& b) { return a.where != b.where || a.host != b.host; }

}  // namespace

std::string encode(const Claim& claim) {
  return fmt::format("{} {} {} {} {} {} {} {} {}", claim.world_size, claim.pid, claim.parent,
                     claim.group, claim.start_time, claim.where.empty() ? kNowhere : claim.where,
                     claim.host.empty() ? kNowhere : claim.host, claim.nonce, claim.program);
}

std::optional<Claim> decode_claim(const std::string& text) {
  Claim claim;
  char where[128] = {};
  char host[65] = {};
  char nonce[64] = {};
  unsigned long long start_time = 0;
  int program_at = 0;
  if (std::sscanf(text.c_str(), "%d %d %d %d %llu %127s %64s %63s %n", &claim.world_size,
                  &claim.pid, &claim.parent, &claim.group, &start_time, where, host, nonce,
                  &program_at) != 8) {
    return std::nullopt;
  }
  claim.start_time = start_time;
  if (std::string_view(where) != kNowhere) claim.where = where;
  claim.host = host;
  claim.nonce = nonce;
  claim.program = text.substr(static_cast<std::size_t>(program_at));
  return claim;
}

Claim claim_of_this_process(int world_size) {
  Claim claim;
  claim.world_size = world_size;
  claim.pid = ::getpid();
  if (const std::optional<net::ProcessStat> stat = net::stat_of(claim.pid)) {
    claim.parent = stat->parent;
    claim.group = stat->group;
    claim.start_time = stat->start_time;
  }
  claim.where = net::pid_space();
  claim.host = net::own_host_name();
  claim.nonce = random_name();
  claim.program = net::program_of(claim.pid);
  return claim;
}

std::string describe(const Claim& claim) {
  return fmt::format("pid {} ({})", claim.pid, claim.program);
}

std::string describe_with_host(const Claim& claim) {
  return fmt::format("{} on {}", describe(claim), claim.host);
}

std::string describe_for(const Claim& own, const Claim& claim) {
  return is_elsewhere(own, claim) ? describe_with_host(claim) : describe(claim);
}

bool is_dead(const Claim& claim, const Claim& own) {
  if (claim.where.empty() || is_elsewhere(claim, own)) return false;
  if (claim.pid == own.pid) return claim.start_time != own.start_time;
  return net::has_ended(claim.pid, claim.start_time);
}

bool is_kin(const Claim& a, const Claim& b) {
  if (is_elsewhere(a, b)) return false;
  if (a.pid == b.pid || a.group == b.group) return true;
  return a.parent == b.parent && a.parent > 1;
}

}  // namespace tutti::rendezvous
