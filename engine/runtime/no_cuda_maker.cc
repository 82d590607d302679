#include "engine/runtime/cuda_maker.h"

namespace folio {

MakeDeviceBackend CudaMaker() { return nullptr; }

}  // namespace folio
