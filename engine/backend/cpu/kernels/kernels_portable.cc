#define FOLIO_KERNEL_NAMESPACE portable
#include "engine/backend/cpu/kernels/table-inl.h"
