#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace folio::test {

// Leaves the largest error of a test, of this model below tests/golden under this strategy, in the
// report that tools/model_gaps.py reads.
inline void RecordWorstError(const std::string& model, const std::string& strategy, float error) {
  testing::Test::RecordProperty("model", model);
  testing::Test::RecordProperty("strategy", strategy);
  testing::Test::RecordProperty("worst_error", absl::StrCat(error));
}

}  // namespace folio::test
