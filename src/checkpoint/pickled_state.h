// State_dicts as Python pickles them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/pickle.h"
#include "checkpoint/state.h"

namespace tutti::checkpoint {

/// Where a storage's bytes are, by its key; nothing: there is no such storage.
using FindStorage = std::function<std::optional<Extent>(std::string_view key)>;

/// The state_dict in a pickle. One is known by its form: texts as keys, a tensor among its values,
/// and no dictionary.
/// Errors    kInvalidArgument: as read_state.
State state_of(const Pickle& pickle, const std::optional<std::string>& key,
               const FindStorage& find_storage);

/// The pickle of an OrderedDict of these tensors, as torch.load(weights_only=True) takes it;
/// `storages`: the key of each one's storage.
std::string pickle_of(std::span<const TensorToStore> tensors,
                      std::span<const std::string> storages);

}  // namespace tutti::checkpoint
