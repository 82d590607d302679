#define FOLIO_KERNEL_NAMESPACE avx512
#include "engine/backend/cpu/kernels/table-inl.h"
