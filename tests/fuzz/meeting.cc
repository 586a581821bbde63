// Whatever stands in the store where ranks meet: who comes reads it, and joins or says in words why
// not. What was decoded says the same when it is encoded again.
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>

#include "fuzz/input.h"
#include "rendezvous/claim.h"
#include "rendezvous/company.h"
#include "rendezvous/notice.h"
#include "rendezvous/round.h"
#include "tutti/store.h"

namespace {

using namespace tutti;
using namespace tutti::rendezvous;
using fuzz::require;

const Claim& own() {
  static const Claim claim = claim_of_this_process(3);
  return claim;
}

void take_text(const std::string& text) {
  if (const auto claim = decode_claim(text)) {
    const auto again = decode_claim(encode(*claim));
    require(again && encode(*again) == encode(*claim));
    (void)describe_for(own(), *claim);
    (void)is_kin(own(), *claim);
    (void)is_dead(*claim, own());
  }
  if (const auto notice = decode_notice(text)) {
    require(!notice->tcp || !notice->tcp->is_wildcard());
    require(decode_notice(encode(*notice)).has_value());
  }
  const Error failure = decode_failure(text, 0);
  require(!name_of(failure.code()).empty());
  const Error again = decode_failure(encode_failure(failure), 0);
  require(again.code() == failure.code());
  require(again.context().culprits == failure.context().culprits);
}

/// A line "KEY TEXT" goes where others write; with "@" before its claim that is of this host.
void write_down(Store& store, const std::string& line) {
  static constexpr const char* kKeys[] = {"roster", "intruders", "failure", "verdict",
                                          "size",   "rank/0",    "rank/1",  "rank/2"};
  if (line.empty()) return;
  const auto which = static_cast<unsigned char>(line[0]) % std::size(kKeys);
  std::string text = line.substr(1);
  take_text(text);
  if (text.starts_with('@')) {
    auto claim = decode_claim(text.substr(1)).value_or(own());
    claim.where = own().where;
    claim.host = own().host;
    text = encode(claim);
    if (which == 0) text = "2 " + text;
  }
  const std::string key = round_prefix("w", 1) + "/" + kKeys[which];
  if (which < 2) return store.append(key, text + "\n");
  store.set(key, text);
  // Who reads a failure in the verdict alone waits for a second for its cause.
  if (which == 3) store.compare_set(round_prefix("w", 1) + "/failure", "", text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  fuzz::log_nothing();
  fuzz::Input input(data, byte_count);
  const std::uint8_t kind = input.byte();
  const std::shared_ptr<Store> store = make_memory_store();
  for (const std::string& line : input.lines()) write_down(*store, line);
  Identity identity;
  identity.rank = 1;
  identity.world_size = 3;
  RoundOptions options{.own = claim_of_this_process(3), .place = "here", .name = "w"};
  options.is_once = true;
  options.is_open = kind % 2 == 1;
  options.company = {.rank = 1, .world_size = 3};
  options.company.is_spread = kind % 4 >= 2;
  try {
    Deadline at_once = Deadline::after(std::chrono::nanoseconds(0));
    if (const auto company = join_round(store, identity, options, at_once)) company->look();
  } catch (const Error& error) {
    require(*error.what() != '\0' || error.code() != ErrorCode::kInternal);
  }
  return 0;
}
