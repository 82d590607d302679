#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/rotation_table.h"
#include "engine/base/worker_pool.h"

namespace folio {

// Writes keys and values into pages (layout: kv_types.h): keys rotated by their offset in the page,
// sinks un-rotated. A page is zeroed when its first token is written, so that lanes without a token
// hold finite numbers. Engine thread; borrows everything.
//   qkv [num_rows][(num_heads + 2 num_kv_heads) * head_dim]
void WriteKv(const AttentionSetup& setup, const cpu::Kernels& kernels,
             const RotationTable& positions, WorkerPool* pool, const StepBatch& batch, int layer,
             const float* qkv);

}  // namespace folio
