#include "engine/runtime/cuda_maker.h"

#include "engine/backend/cuda/cuda_backend.h"

namespace folio {

MakeDeviceBackend CudaMaker() {
  return [] { return CreateCudaBackend(0); };
}

}  // namespace folio
