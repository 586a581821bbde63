// What a call refuses its input with.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tutti/error.h"

namespace tutti::launch {

/// The text of the Error(kInvalidArgument) that `call` throws; "none" if it throws none.
template <class Call>
std::string refusal_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "none";
}

}  // namespace tutti::launch
