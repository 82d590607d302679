// Bounds of chunk scores from summaries in 8 bits.
#pragma once

#include <algorithm>
#include <limits>

#include "engine/backend/cpu/kernels/int_vec-inl.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/vec-inl.h"

namespace folio::cpu::FOLIO_KERNEL_NAMESPACE {
namespace {

struct ScoreBounds {
  Vec score;  // of what is rounded
  Vec error;
};

FOLIO_INLINE ScoreBounds BoundTerm(const BoundChunksArgs::Term& term, int dim) {
  const RoundedQuery& q = *term.query;
  const std::byte* at = term.tile;
  const std::byte* next = term.next;
  IntVec dots = SplatInt(-SignedQuads::kBias * q.sum);
#pragma GCC unroll 1
  for (int quad = 0; quad < dim / 4; ++quad) {
    __builtin_prefetch(next);
    const SignedQuads quads(LoadBits(at));
    dots = ForRegs<IntVec>([&](int i) { return quads.Add(dots.r[i], i, q.words[quad]); });
    at += 64;
    next += 64;
  }
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) __builtin_prefetch(next + 64 * i);
  const auto* const facts = reinterpret_cast<const float*>(at);
  const Vec scales = Load(facts);
  const Vec norms = Load(facts + kTile);
  const Vec errors = Load(facts + 2 * kTile);
  const Vec rounding = (norms + errors) * Splat(q.slack * q.norm);
  return {ToFloat(dots) * (scales * Splat(q.scale)),
          norms * Splat(q.error) + errors * Splat(q.norm) + rounding};
}

void BoundChunks(BoundChunksArgs* args) {
  Vec score = Zero();
  Vec error = Zero();
  for (const BoundChunksArgs::Term& term : args->terms) {
    const ScoreBounds bounds = BoundTerm(term, args->dim);
    score = score + bounds.score;
    error = error + bounds.error;
  }
  const Vec lower = score - error;
  const Vec upper = score + error;
  Store(args->lower.data(), lower);
  args->above = LanesAbove(lower, args->threshold);
  // What is not a number may be anything.
  const Reg infinity = SplatReg(std::numeric_limits<float>::infinity());
  args->most = HorizontalMax(
      ForRegs<Vec>([&](int i) { return upper.r[i] == upper.r[i] ? upper.r[i] : infinity; }));
}

}  // namespace
}  // namespace folio::cpu::FOLIO_KERNEL_NAMESPACE
