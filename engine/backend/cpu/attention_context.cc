#include "engine/backend/cpu/attention_context.h"

#include <cmath>

#include "engine/backend/cpu/sealed_codec.h"
#include "engine/base/half.h"

namespace folio {

float CpuAttentionContext::Scale(const RopeTables& tables) const {
  return 1.0f / std::sqrt(static_cast<float>(geometry().head_dim)) * setup->views.score_scale *
         tables.logit_factor;
}

PageNumbers PageReader::Read(const CpuAttentionContext& context, const RopeTables& rope,
                             const std::byte* slice, const Form& form) {
  const KvGeometry& g = context.geometry();
  const bool turns = g.paired_keys || form.stored_rotated != form.rotated;
  if (form.sealed && form.integers && !turns) {
    const SealedSlice sealed(g, slice);
    return {sealed.keys, sealed.values, sealed.key_scales, sealed.value_scales};
  }
  if (form.sealed) {
    unsealed_.resize(g.slice_bytes());
    UnsealSlice(g, slice, unsealed_.data());
    slice = unsealed_.data();
  }
  PageNumbers numbers{.k = slice, .v = slice + g.key_bytes()};
  if (!turns) return numbers;
  turned_.resize(g.value_bytes());  // keys that are spread out take as much as values
  rope.RotatePage(g, *context.kernels, form.rotated, slice, turned_.data());
  numbers.k = turned_.data();
  return numbers;
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
