// What a measurement compares, as text.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "folio/v1/common.pb.h"

namespace folio::eval {

// A strategy under a position scheme, and what the tables call it.
struct Method {
  std::string name;
  v1::AttentionStrategy strategy;
  v1::PositionScheme position;  // unset: the checkpoint's own
};

// One or more methods, separated by commas: STRATEGY or STRATEGY+POSITIONS, each NAME or
// NAME:KEY=VALUE,... ("full,full+yarn:factor=8,beta_fast=16,long_heads"). Errors: INVALID_ARGUMENT.
absl::StatusOr<std::vector<Method>> ParseMethods(const std::string& text);

}  // namespace folio::eval
