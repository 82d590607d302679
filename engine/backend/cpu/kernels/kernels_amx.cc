#define FOLIO_KERNEL_NAMESPACE amx
#include "engine/backend/cpu/kernels/table-inl.h"
