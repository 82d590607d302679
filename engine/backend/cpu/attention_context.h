#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/rope_tables.h"

namespace folio {

// Picks of layer 0 for the rows of a step, which later layers take over
// (ChunkSelection::Share::kLayers).
struct SharedPicks {
  // [step rows][num_heads][picks_per_head], ascending; counts [step rows][num_heads].
  std::vector<int64_t> picks;
  std::vector<int> counts;
  int picks_per_head = 0;
};

// What the attention code of the CPU backend works with for one slice of a step. Borrowed; tables
// are grown before use.
struct CpuAttentionContext {
  const AttentionSetup* setup = nullptr;
  const cpu::Kernels* kernels = nullptr;
  const SequenceSlice* slice = nullptr;
  const RopeTables* rope = nullptr;
  // Of layers that have a window of their own (LayerViews); null: the same.
  const RopeTables* window_rope = nullptr;
  // Of the chunk summaries, and of the answer.
  const RopeTables* summary_rope = nullptr;
  SharedPicks* shared_picks = nullptr;

  const KvGeometry& geometry() const { return setup->geometry; }
  const AttentionPlan& plan() const { return *slice->plan; }
  int group_size() const { return geometry().group_size(); }
  bool raw_keys() const { return plan().key_form == KeyForm::kRaw; }
  const RopeTables& RopeOf(int layer) const {
    const bool all = window_rope == nullptr || setup->views.WindowOf(layer) == LayerViews::kAll;
    return all ? *rope : *window_rope;
  }
  // 1 / sqrt(head_dim), and the factors of the checkpoint and of the position scheme.
  float Scale(const RopeTables& tables) const;
  // Query of one head in a row of the slice, not rotated.
  const float* Query(const float* qkv, int row, int head) const {
    const KvGeometry& g = geometry();
    return qkv + int64_t{slice->row_begin + row} * (g.num_heads + 2 * g.num_kv_heads) * g.head_dim +
           int64_t{head} * g.head_dim;
  }
  // One slice of a page, or of a copy of the first tokens: keys as they are stored, then values.
  std::byte* PageSlice(FrameId frame, int layer, int kv_head) const {
    return setup->pages.Slice(frame, geometry().slice(layer, kv_head));
  }
  // The same of an open page: as it was written.
  std::byte* OpenSlice(FrameId frame, int layer, int kv_head) const {
    if (geometry().sealed_bits == 0) return PageSlice(frame, layer, kv_head);
    return SinkSlice(setup->page_places[frame], layer, kv_head);
  }
  // Whether query i reads this page sealed.
  bool IsSealedFor(int64_t page, int64_t i) const {
    const int page_tokens = geometry().page_tokens;
    return geometry().sealed_bits != 0 &&
           page * page_tokens < FirstOpenToken(plan(), page_tokens, i);
  }
  std::byte* SinkSlice(FrameId frame, int layer, int kv_head) const {
    return setup->frames.Frame(frame) + geometry().slice_offset(layer, kv_head);
  }
  std::byte* SummaryTile(FrameId frame, int layer, int head) const {
    return setup->summaries.Frame(frame) + geometry().summary_offset(layer, head);
  }
};

// A slice of a page as the kernels of attention read it: of integers where there are scales.
struct PageNumbers {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  const float* k_scales = nullptr;
  const float* v_scales = nullptr;
};

// Reads slices of pages, whatever the form they are stored in. One per thread.
class PageReader {
 public:
  struct Form {
    bool sealed = false;
    bool stored_rotated = false;
    bool rotated = false;   // what is wanted
    bool integers = false;  // may be returned
  };
  // Sealed pages stay integers where they may and their keys are rotated as they are wanted.
  // REQUIRES: not both stored_rotated and un-rotated wanted, unless keys are paired (those are
  // never stored rotated). Valid until the next call.
  PageNumbers Read(const CpuAttentionContext& context, const RopeTables& rope,
                   const std::byte* slice, const Form& form);

 private:
  std::vector<std::byte> unsealed_;
  std::vector<std::byte> turned_;
};

// One key (stored form) or value of a slice as fp32, head_dim values.
void ReadKey(const KvGeometry& geometry, const std::byte* keys, int token, float* out);
void ReadValue(const KvGeometry& geometry, const std::byte* values, int token, float* out);

}  // namespace folio
