// Runs engine tests on the CUDA backend, whose kernels are emulated here.
#include "engine/backend/cuda/cuda_backend.h"
#include "gtest/gtest.h"
#include "tests/engine/test_model.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  folio::test::UseTestBackend([] { return *folio::CreateCudaBackend(0); },
                              folio::test::BackendSpeed::kEmulated);
  return RUN_ALL_TESTS();
}
