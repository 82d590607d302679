#include "engine/backend/cpu/attention_context.h"

#include <cmath>

#include "engine/base/half.h"

namespace folio {

float CpuAttentionContext::Scale(const RopeTables& tables) const {
  return 1.0f / std::sqrt(static_cast<float>(geometry().head_dim)) * tables.logit_factor;
}

const std::byte* PageKeys::Read(const CpuAttentionContext& context, const RopeTables& rope,
                                const std::byte* keys, bool stored_rotated, bool rotated) {
  const KvGeometry& g = context.geometry();
  if (!g.paired_keys && stored_rotated == rotated) return keys;
  scratch_.resize(g.value_bytes());  // keys that are spread out take as much as values
  rope.RotatePage(g, *context.kernels, rotated, keys, scratch_.data());
  return scratch_.data();
}

void ReadKey(const KvGeometry& g, const std::byte* keys, int token, float* out) {
  const int64_t at = int64_t{token / kTile} * kTile * g.padded_dim;
  const int lane = token % kTile;
  for (int d = 0; d < g.head_dim; ++d) {
    if (g.dtype == DType::kBf16) {
      const auto* tile = reinterpret_cast<const uint16_t*>(keys) + at;
      out[d] = Bf16ToFloat(tile[(d / 2 * kTile + lane) * 2 + d % 2]);
    } else {
      out[d] = (reinterpret_cast<const float*>(keys) + at)[d * kTile + lane];
    }
  }
}

void ReadValue(const KvGeometry& g, const std::byte* values, int token, float* out) {
  for (int d = 0; d < g.head_dim; ++d) {
    if (g.dtype == DType::kBf16) {
      const auto* pair = reinterpret_cast<const uint16_t*>(values) + token / 2 * 2 * g.padded_dim;
      out[d] = Bf16ToFloat(pair[d * 2 + token % 2]);
    } else {
      out[d] = (reinterpret_cast<const float*>(values) + int64_t{token} * g.padded_dim)[d];
    }
  }
}

}  // namespace folio
