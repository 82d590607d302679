#define FOLIO_KERNEL_NAMESPACE avx2
#include "engine/backend/cpu/kernels/table-inl.h"
