// The seed of every random test.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace folio::test {

// FOLIO_TEST_SEED if it is set (./dev soak), else 0: the same numbers in every run.
inline uint64_t TestSeed() {
  const char* seed = std::getenv("FOLIO_TEST_SEED");
  return seed == nullptr ? 0 : std::strtoull(seed, nullptr, 10);
}

// A member of a fixture: failures then say how to see them again.
class SaysTestSeed {
 private:
  testing::ScopedTrace trace_{__FILE__, __LINE__, "FOLIO_TEST_SEED=" + std::to_string(TestSeed())};
};

}  // namespace folio::test
