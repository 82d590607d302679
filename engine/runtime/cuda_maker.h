#pragma once

#include "engine/runtime/engine.h"

namespace folio {

// What makes the CUDA backend, for EngineOptions; empty in a build without it. Programs that never
// run on a GPU, as most tests, do not link it.
MakeDeviceBackend CudaMaker();

}  // namespace folio
