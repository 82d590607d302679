#pragma once

#include "engine/backend/cuda/kernel_math.h"

namespace folio::cuda {

// One page (or a part of one) that a row looks at, and how.
struct Visit {
  const unsigned char* keys;
  const unsigned char* values;
  int place;  // of the page, as page tables have it
  int lo;     // tokens of the page that are visible
  int hi;
  int head;  // of the group; -1: all
  // The query is turned by both (null: not), the second with a sign.
  const float* base;
  const float* turn;
  float turn_sign;
  // Keys are to be turned by their offset in the page first.
  bool turn_keys;
  int64_t distance;  // at which token 0 of the page is seen; pinned: every token of it
  bool pinned;
};

// Walks what one row of one KV head looks at: visits 0 .. count() - 1, in the order of the stages.
class Visits {
 public:
  FOLIO_DEVICE Visits(const Geometry& g, const Slice& s, const Picks& picks, const Picks& tokens,
                      int row, int layer, int kv_head)
      : g_(g),
        s_(s),
        picks_(picks),
        tokens_(tokens),
        row_(row),
        layer_(layer),
        kv_head_(kv_head),
        i_(s.first_position + row - s.row_begin) {
    for (int stage = 0; stage < s_.num_stages; ++stage) {
      counts_[stage] = s_.stages[stage].CoversRow(i_) ? CountOf(s_.stages[stage]) : 0;
      count_ += counts_[stage];
    }
  }

  FOLIO_DEVICE int64_t count() const { return count_; }

  // False where there is nothing to see (a padded place).
  FOLIO_DEVICE bool Get(int64_t v, Visit* visit) const {
    const Stage* stage = StageOf(&v);
    return stage != nullptr && Make(*stage, v, visit);
  }

  // The stage of visit *v, which becomes the place in that stage; null: there is no such visit.
  FOLIO_DEVICE const Stage* StageOf(int64_t* v) const {
    for (int stage = 0; stage < s_.num_stages; ++stage) {
      if (*v < counts_[stage]) return &s_.stages[stage];
      *v -= counts_[stage];
    }
    return nullptr;
  }

 private:
  FOLIO_DEVICE int64_t FirstPage(const Stage& stage) const {
    const int64_t page = KeysOf(stage, s_.num_sinks, i_).begin / g_.page_tokens;
    return page > s_.first_page ? page : s_.first_page;
  }
  FOLIO_DEVICE int PagesPerChunk() const { return s_.selection.chunk_tokens / g_.page_tokens; }
  FOLIO_DEVICE int ChunksPerHead() const { return folio::ChunksPerHead(s_.selection); }

  FOLIO_DEVICE int64_t CountOf(const Stage& stage) const {
    if (stage.keys == Stage::kChunks) {
      return int64_t{g_.group()} * ChunksPerHead() * PagesPerChunk();
    }
    if (i_ < stage.band_begin) return 0;
    if (stage.keys == Stage::kContext) {
      const int64_t pages = (i_ - stage.band_begin) / g_.page_tokens - FirstPage(stage) + 1;
      return pages > 0 ? pages : 0;
    }
    if (stage.keys == Stage::kSinks) {
      const int64_t end = KeysOf(stage, s_.num_sinks, i_).end;
      return (end + g_.page_tokens - 1) / g_.page_tokens;
    }
    const bool chooses = ChoosesTokens(s_.top_tokens, s_.prompt_tokens, i_, layer_);
    return chooses ? int64_t{g_.group()} * s_.top_tokens.count : 0;
  }

  FOLIO_DEVICE void SetPage(int place, Visit* visit) const {
    visit->place = place;
    visit->keys = g_.Keys(place, layer_, kv_head_);
    visit->values = visit->keys + g_.key_bytes;
  }

  // How the query is turned for a page that it sees `pages_between` pages ahead of its own.
  FOLIO_DEVICE void SetTurn(const Stage& stage, int64_t pages_between, int64_t page,
                            Visit* visit) const {
    const int half = g_.half();
    visit->pinned = stage.distance == Stage::kPinned;
    visit->turn = nullptr;
    visit->turn_sign = 1.0f;
    if (visit->pinned) {
      visit->base = stage.fixed;
      return;
    }
    if (g_.coca_query == CocaQuery::kRaw) {
      visit->base = nullptr;
      visit->turn = page == 0 ? nullptr : s_.rope.pages.At(page, half);
      visit->turn_sign = -1.0f;
      return;
    }
    const int64_t at = QueryPosition(stage, i_);
    visit->base = s_.rope.positions.At(at % g_.page_tokens, half);
    if (pages_between != 0) visit->turn = s_.rope.pages.At(pages_between, half);
  }

  FOLIO_DEVICE bool Make(const Stage& stage, int64_t v, Visit* visit) const {
    visit->head = -1;
    switch (stage.keys) {
      case Stage::kContext:
        return MakeContext(stage, v, visit);
      case Stage::kSinks:
        return MakeSinks(stage, v, visit);
      case Stage::kChunks:
        return MakeChunk(stage, v, visit);
      default:
        return MakeToken(stage, v, visit);
    }
  }

  FOLIO_DEVICE bool MakeContext(const Stage& stage, int64_t v, Visit* visit) const {
    const int64_t page = FirstPage(stage) + v;
    const int64_t start = page * g_.page_tokens;
    const KeyRange keys = KeysOf(stage, s_.num_sinks, i_);
    visit->lo = keys.begin > start ? static_cast<int>(keys.begin - start) : 0;
    visit->hi =
        keys.end - start < g_.page_tokens ? static_cast<int>(keys.end - start) : g_.page_tokens;
    SetPage(s_.pages[page - s_.first_page], visit);
    SetTurn(stage, i_ / g_.page_tokens - page, page, visit);
    visit->turn_keys = (s_.raw_keys || g_.paired_keys) && !visit->pinned;
    visit->distance = visit->pinned ? stage.distance_limit : i_ - start;
    return visit->lo < visit->hi;
  }

  FOLIO_DEVICE bool MakeSinks(const Stage& stage, int64_t page, Visit* visit) const {
    const int64_t start = page * g_.page_tokens;
    const int64_t left = KeysOf(stage, s_.num_sinks, i_).end - start;
    const int64_t at = QueryPosition(stage, i_);
    visit->lo = 0;
    visit->hi = left < g_.page_tokens ? static_cast<int>(left) : g_.page_tokens;
    SetPage(s_.sinks[page], visit);
    SetTurn(stage, at / g_.page_tokens - page, page, visit);
    visit->turn_keys = g_.paired_keys && !visit->pinned;
    visit->distance = visit->pinned ? stage.distance_limit : at - start;
    return visit->hi > 0;
  }

  FOLIO_DEVICE bool MakeChunk(const Stage& stage, int64_t v, Visit* visit) const {
    const ChunkSelection& select = s_.selection;
    const int64_t w = select.chunk_tokens;
    const int pages_per_chunk = PagesPerChunk();
    const int64_t page = v % pages_per_chunk;
    const int slot = static_cast<int>(v / pages_per_chunk % ChunksPerHead());
    visit->head = static_cast<int>(v / pages_per_chunk / ChunksPerHead());
    const int64_t at = int64_t{row_} * g_.num_heads + kv_head_ * g_.group() + visit->head;
    const ChunkView view = ViewChunks(select, i_, i_ < s_.prompt_tokens);
    const int num_picks = picks_.counts[at];
    const int num_others = num_picks + view.num_forced;
    if (slot > num_others) return false;
    // Ascending: the first, the picks, the previous, the own one.
    int64_t chunk = view.own;
    if (slot < num_others) {
      const int pick = slot - (view.forces_first() ? 1 : 0);
      if (pick < 0) {
        chunk = 0;
      } else if (pick < num_picks) {
        chunk = picks_.chosen[at * picks_.capacity + pick];
      } else {
        chunk = view.forced[view.num_forced - 1];
      }
    }
    const int64_t slots_after = num_others - slot;
    const int64_t offset = i_ % w;
    const int64_t visible = (slots_after == 0 ? view.own_tokens : w) - page * g_.page_tokens;
    if (visible <= 0) return false;
    visit->lo = 0;
    visit->hi = visible < g_.page_tokens ? static_cast<int>(visible) : g_.page_tokens;
    const int64_t logical = chunk * pages_per_chunk + page;
    SetPage(s_.pages[logical - s_.first_page], visit);
    SetTurn(stage, slots_after * pages_per_chunk + offset / g_.page_tokens - page, logical, visit);
    visit->turn_keys = s_.raw_keys;
    visit->distance = slots_after * w + offset - page * g_.page_tokens;
    return true;
  }

  FOLIO_DEVICE bool MakeToken(const Stage& stage, int64_t v, Visit* visit) const {
    visit->head = static_cast<int>(v / s_.top_tokens.count);
    const int pick = static_cast<int>(v % s_.top_tokens.count);
    const int64_t at = int64_t{row_} * g_.num_heads + kv_head_ * g_.group() + visit->head;
    if (pick >= tokens_.counts[at]) return false;
    const int64_t token = tokens_.chosen[at * tokens_.capacity + pick];
    const int64_t page = token / g_.page_tokens;
    visit->lo = static_cast<int>(token % g_.page_tokens);
    visit->hi = visit->lo + 1;
    SetPage(s_.pages[page - s_.first_page], visit);
    SetTurn(stage, 0, page, visit);
    visit->turn_keys = false;
    visit->distance = stage.distance_limit;
    return true;
  }

  const Geometry& g_;
  const Slice& s_;
  const Picks& picks_;
  const Picks& tokens_;
  const int row_;
  const int layer_;
  const int kv_head_;
  const int64_t i_;
  int64_t counts_[kMaxStages] = {};
  int64_t count_ = 0;
};

}  // namespace folio::cuda
