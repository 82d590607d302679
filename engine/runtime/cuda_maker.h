#pragma once

#include "engine/runtime/engine.h"

namespace folio {

// What makes the CUDA backend; empty in a build without it. Programs that link folio_cuda_maker
// pass it to EngineOptions; others start faster, as they load no CUDA libraries.
MakeDeviceBackend CudaMaker();

}  // namespace folio
