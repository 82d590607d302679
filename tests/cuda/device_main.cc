// Runs engine tests on a GPU. Without one: says why, and counts as skipped.
#include <cstdio>

#include "engine/backend/cuda/cuda_backend.h"
#include "gtest/gtest.h"
#include "tests/engine/test_model.h"

namespace {
constexpr int kSkipped = 77;
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto backend = folio::CreateCudaBackend(0);
  if (!backend.ok()) {
    std::printf("SKIPPED: %s\n", std::string(backend.status().message()).c_str());
    return kSkipped;
  }
  std::printf("on %s\n", (*backend)->name().c_str());
  folio::test::UseTestBackend([] { return *folio::CreateCudaBackend(0); });
  return RUN_ALL_TESTS();
}
