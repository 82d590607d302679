#define FOLIO_KERNEL_NAMESPACE avx512_vnni
#include "engine/backend/cpu/kernels/table-inl.h"
