#define FOLIO_KERNEL_NAMESPACE avx512_bf16
#include "engine/backend/cpu/kernels/table-inl.h"
