#pragma once

#include "engine/backend/cuda/device.h"

namespace folio::cuda {

// cuBLASLt as device.cu opens it; MatMul (device.h) takes what OpenBlas gives.
Error OpenBlas(void** blas);
void CloseBlas(void* blas);

}  // namespace folio::cuda
