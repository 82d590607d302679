#include "engine/backend/cpu/kv_writer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/backend/cpu/coca.h"
#include "engine/backend/cpu/sealed_codec.h"
#include "engine/base/half.h"

namespace folio {
namespace {

// One slice: keys and values of one page, layer and KV head.
class SliceWriter {
 public:
  SliceWriter(const KvGeometry& geometry, std::byte* slice)
      : geometry_(geometry), keys_(slice), values_(slice + geometry.key_bytes()) {}

  void Clear() { std::memset(keys_, 0, geometry_.slice_bytes()); }

  // key: head_dim numbers, or one per pair if keys are paired.
  void Write(int token, const float* key, const float* value) {
    if (geometry_.dtype == DType::kBf16) {
      WriteBf16(token, key, value);
    } else {
      WriteF32(token, key, value);
    }
  }

 private:
  void WriteF32(int token, const float* key, const float* value) {
    auto* tile = reinterpret_cast<float*>(keys_) + TileOffset(token);
    auto* row = reinterpret_cast<float*>(values_) + token * geometry_.padded_dim;
    for (int d = 0; d < key_dim(); ++d) tile[d * kTile + token % kTile] = key[d];
    std::copy_n(value, geometry_.head_dim, row);
  }

  void WriteBf16(int token, const float* key, const float* value) {
    auto* tile = reinterpret_cast<uint16_t*>(keys_) + TileOffset(token);
    auto* pair = reinterpret_cast<uint16_t*>(values_) + token / 2 * 2 * geometry_.padded_dim;
    for (int d = 0; d < key_dim(); ++d) {
      tile[(d / 2 * kTile + token % kTile) * 2 + d % 2] = FloatToBf16(key[d]);
    }
    for (int d = 0; d < geometry_.head_dim; ++d) {
      pair[d * 2 + token % 2] = FloatToBf16(value[d]);
    }
  }

  int TileOffset(int token) const { return token / kTile * kTile * geometry_.padded_key_dim(); }
  int key_dim() const {
    return geometry_.paired_keys ? geometry_.head_dim / 2 : geometry_.head_dim;
  }

  const KvGeometry& geometry_;
  std::byte* const keys_;
  std::byte* const values_;
};

void WriteSlice(const CpuAttentionContext& context, int layer, int kv_head, const float* qkv) {
  const KvGeometry& g = context.geometry();
  const SequenceSlice& slice = *context.slice;
  const bool rotated_sinks = std::any_of(slice.plan->stages.begin(), slice.plan->stages.end(),
                                         [](const auto& s) { return SinksAreRotated(s); });
  std::array<float, kMaxHeadDim> changed;
  for (int i = 0; i < slice.num_rows; ++i) {
    const int64_t position = slice.first_position + i;
    const int token = static_cast<int>(position % g.page_tokens);
    const int64_t page = position / g.page_tokens;
    const float* key = context.Query(qkv, i, g.num_heads + kv_head);
    const float* value = key + int64_t{g.num_kv_heads} * g.head_dim;
    const float* of_page = changed.data();
    const float* of_sink = changed.data();
    if (g.paired_keys) {
      CocaKey(key, g.head_dim / 2, changed.data());
    } else {
      const RotationTable& positions = context.RopeOf(layer).positions;
      context.kernels->rotate(key, positions.Cos(token), positions.Sin(token), 1.0f, g.head_dim / 2,
                              changed.data());
      if (context.raw_keys()) of_page = key;
      if (!rotated_sinks) of_sink = key;
    }
    SliceWriter writer(g, context.OpenSlice(slice.pages[page - slice.first_page], layer, kv_head));
    if (token == 0) writer.Clear();
    writer.Write(token, of_page, value);
    if (position >= slice.plan->retention.num_sinks) continue;
    SliceWriter sink(g, context.SinkSlice(slice.sinks[page], layer, kv_head));
    if (token == 0) sink.Clear();
    sink.Write(token, of_sink, value);
  }
}

// Pages that the step completes: later rows of it read them so.
void SealPages(const CpuAttentionContext& context, int layer, int kv_head) {
  const KvGeometry& g = context.geometry();
  const SequenceSlice& slice = *context.slice;
  if (g.sealed_bits == 0) return;
  const auto first_open = [&](int64_t num_tokens) {
    return FirstOpenToken(*slice.plan, g.page_tokens, num_tokens) / g.page_tokens;
  };
  const int64_t end = first_open(slice.first_position + slice.num_rows);
  for (int64_t page = first_open(slice.first_position); page < end; ++page) {
    const FrameId frame = slice.pages[page - slice.first_page];
    SealSlice(g, context.OpenSlice(frame, layer, kv_head),
              context.PageSlice(frame, layer, kv_head));
  }
}

}  // namespace

void WriteKv(std::span<const CpuAttentionContext> contexts, WorkerPool* pool, int layer,
             const float* qkv) {
  if (contexts.empty()) return;
  const int num_kv_heads = contexts[0].geometry().num_kv_heads;
  const int64_t num_tasks = static_cast<int64_t>(contexts.size()) * num_kv_heads;
  pool->ParallelFor(num_tasks, [&](int64_t task, int) {
    const CpuAttentionContext& context = contexts[task / num_kv_heads];
    const int kv_head = static_cast<int>(task % num_kv_heads);
    WriteSlice(context, layer, kv_head, qkv);
    SealPages(context, layer, kv_head);
  });
}

}  // namespace folio
