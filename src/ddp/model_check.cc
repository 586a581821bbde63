#include "ddp/model_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/hash.h"
#include "tutti/error.h"

namespace tutti::ddp {
namespace {

std::string join(const ModelDescription& description) {
  return fmt::format("{}", fmt::join(description, "\n"));
}

ModelDescription split(std::string_view text) {
  ModelDescription lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// What `description` has at `line` and `other` has nowhere or at another line; where it has
/// nothing, what that is that `other` has: "no such parameter".
std::string quote(const ModelDescription& description, std::size_t line,
                  const ModelDescription& other) {
  const auto has = [](const ModelDescription& lines, const std::string& text) {
    return std::find(lines.begin(), lines.end(), text) != lines.end();
  };
  const auto nothing = [&] { return "no such " + other[line].substr(0, other[line].find(' ')); };
  if (line >= description.size()) return nothing();
  // A line that both have stands elsewhere in `other` because that has one more here.
  const bool is_pushed_on = line < other.size() && has(other, description[line]);
  if (is_pushed_on && !has(description, other[line])) return nothing();
  return fmt::format("'{}'", description[line]);
}

/// What the ranks tell each other, by rank.
struct Told {
  std::vector<std::string> hosts;
  std::vector<ModelDescription> descriptions;
};

/// Only after a difference was found, so cost does not matter.
Told exchange(ProcessGroup& group, const ModelDescription& own, Where where) {
  std::string text = group.host() + "\n" + join(own);
  const std::uint64_t own_count = text.size();
  const auto ranks = static_cast<std::size_t>(group.world_size());
  std::vector<std::uint64_t> counts(ranks);
  group.all_gather(ConstBuffer(own_count), Buffer(counts), {}, where);
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  text.resize(longest);
  std::string all(longest * ranks, '\0');
  group.all_gather(ConstBuffer(text.data(), longest, DType::u8),
                   Buffer(all.data(), all.size(), DType::u8), {}, where);
  Told told;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::string_view one = std::string_view(all).substr(rank * longest, counts[rank]);
    const std::size_t end = one.find('\n');
    told.hosts.emplace_back(one.substr(0, end));
    told.descriptions.push_back(split(one.substr(end + 1)));
  }
  return told;
}

/// After it every rank has every description. The first to throw may leave the group meanwhile,
/// which ends the barrier of the others: what they have to say they know by then.
void await_all(ProcessGroup& group, Where where) {
  try {
    group.barrier({}, where);
  } catch (const Error&) {
  }
}

}  // namespace

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  std::uint64_t hash = hash_combine(seed, bytes.size());
  while (!bytes.empty()) {
    std::uint64_t word = 0;
    const std::size_t taken = std::min(bytes.size(), sizeof(word));
    std::memcpy(&word, bytes.data(), taken);
    hash = hash_combine(hash, word);
    bytes = bytes.subspan(taken);
  }
  return hash;
}

std::uint64_t digest(const ModelDescription& description) { return hash_text(join(description)); }

ModelDifference first_difference(std::span<const ModelDescription> by_rank) {
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const ModelDescription& first = by_rank[0];
    const ModelDescription& other = by_rank[rank];
    if (first == other) continue;
    const auto [in_first, in_other] =
        std::mismatch(first.begin(), first.end(), other.begin(), other.end());
    const auto line = static_cast<std::size_t>(in_first - first.begin());
    return {static_cast<int>(rank),
            fmt::format("rank 0 has {}, rank {} has {}", quote(first, line, other), rank,
                        quote(other, line, first))};
  }
  return {};
}

void check_same(ProcessGroup& group, const Compared& compared, const ModelDescription& own,
                Where where) {
  const std::uint64_t own_digest = digest(own);
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(group.world_size()));
  group.all_gather(ConstBuffer(own_digest), Buffer(digests), {}, where);
  const auto equals_own = [&](std::uint64_t other) { return other == own_digest; };
  if (std::all_of(digests.begin(), digests.end(), equals_own)) return;
  const Told told = exchange(group, own, where);
  const ModelDifference difference = first_difference(told.descriptions);
  await_all(group, where);
  ErrorContext context;
  context.op = compared.op;
  context.rank = group.rank();
  context.culprits = {difference.rank};
  context.host = told.hosts[static_cast<std::size_t>(difference.rank)];
  context.call_site = name_of(where);
  throw Error(ErrorCode::kCollectiveMismatch,
              fmt::format("{}, rank {}: the ranks' {} differ: {}. {}", compared.owner, group.rank(),
                          compared.what, difference.text, compared.remedy),
              std::move(context));
}

}  // namespace tutti::ddp
