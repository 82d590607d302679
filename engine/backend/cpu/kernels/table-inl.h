// The kernels of one instruction set: a source file names it (FOLIO_KERNEL_NAMESPACE) and includes
// this; its compile flags do the rest.
#pragma once

#include "engine/backend/cpu/kernels/kernels.h"
// Order matters: the others use the vectors of the first.
#include "engine/backend/cpu/kernels/attention-inl.h"
#include "engine/backend/cpu/kernels/coarse_scores-inl.h"
#include "engine/backend/cpu/kernels/elementwise-inl.h"
#include "engine/backend/cpu/kernels/matmul-inl.h"
#include "engine/backend/cpu/kernels/meter-inl.h"
#include "engine/backend/cpu/kernels/rotate-inl.h"
#include "engine/backend/cpu/kernels/scores-inl.h"
#include "engine/backend/cpu/kernels/sealed_attention-inl.h"
#include "engine/backend/cpu/kernels/vec-inl.h"
#if defined(__AMX_TILE__)
#include "engine/backend/cpu/kernels/amx_table-inl.h"
#endif

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {

const Kernels& Table() {
  static const Kernels table = [] {
    Kernels kernels = {
        .matmul_rows = kMatMulRows,
        .bf16_matmul_rows = kMatMulRows,
        .integer_matmul_rows = kIntegerRows,
        .pack_x = PackX,
        .matmul = MatMul,
        .matmul_scratch_bytes = [](const PanelFormat&, const MatMulArgs&) -> int64_t { return 0; },
        .attend_page = AttendPage,
        .attend_sealed_page = AttendSealedPage,
        .score_chunks = ScoreChunks,
        .begin_scores = [] {},
        .end_scores = [] {},
        .pack_chunk_queries = PackChunkQueries,
        .chunk_query_bytes = ChunkQueryBytes,
        .score_coarsely = ScoreCoarsely,
        .count_above = CountAbove,
        .score_page = ScorePage,
        .add_weighted_keys = AddWeightedKeys,
        .add_weighted_values = AddWeightedValues,
        .add_softmax = AddSoftmax,
        .rms_norm = RmsNorm,
        .swiglu = SwiGlu,
        .rotate = Rotate,
        .rotate_rows = RotateRows,
        .rotate_tile = RotateTile,
        .read_bytes = ReadBytes,
        .multiply_add = MultiplyAdd,
        .multiply_add_flops = 2 * kLanes * kMultiplyAddChains,
    };
#if defined(__AMX_TILE__)
    UseMatrixUnit<AmxTiles>(&kernels);
#endif
    return kernels;
  }();
  return table;
}

}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
