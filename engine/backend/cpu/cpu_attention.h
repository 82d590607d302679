#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/attention/visible_keys.h"
#include "engine/backend/cpu/attention_context.h"
#include "engine/backend/cpu/chunk_selector.h"

namespace folio {

// Attention of some rows of one sequence with one KV head: the queries of the head's group, or of
// some heads of it, together, so that every page is loaded once for all that see it. Pages go in
// ascending order and a row's arithmetic never depends on the rows beside it: any batch and any
// chunking gives the same bits. A stage of the plan is one pass over pages, or two (tokens are
// scored, then read); a pass says which pages it reads before it visits them, so that they can be
// brought into memory in between. One per thread, or one per block while blocks take turns.
class AttentionWorker {
 public:
  // Tokens per block so that its running softmaxes stay in the second-level cache.
  static int BlockTokens(const KvGeometry& geometry);

  struct Block {
    const CpuAttentionContext* context = nullptr;
    int first_row = 0;  // of the slice
    int num_rows = 0;
    int kv_head = 0;
    int first_head = 0;  // of those of the KV head's group
    int num_heads = 0;
    int layer = 0;
  };

  // A stage that sees all tokens of a range does so in segments of pages, each with a running
  // softmax of its own; these are folded in ascending order. So other threads may take segments
  // apart, and the bits stay the same.
  struct Segments {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
  };

  // A whole block, where every page is in memory.
  //   qkv  [step rows][(num_heads + 2 num_kv_heads) * head_dim]
  //   out  [step rows][num_heads * head_dim]
  void Run(const Block& block, const float* qkv, float* out);

  // The same in parts: Begin; of each pass BeginPass, VisitBefore until all of its pages are
  // visited, and EndPass; Finish. `qkv` is read until then.
  void Begin(const Block& block, const float* qkv);
  int num_passes() const { return static_cast<int>(passes_.size()); }
  void BeginPass(int pass);
  // Pages of the sequence that the pass reads, ascending; they may have been written in this step.
  std::span<const int64_t> pages() const { return pages_; }
  // They are all that the pass may see: it chooses none.
  bool scans() const {
    using Keys = AttentionStage::Keys;
    return stage().keys == Keys::kContext ||
           (stage().keys == Keys::kTopTokens && !passes_[pass_].reads_tokens);
  }
  // Visits those of its pages before `end` that were not visited yet. REQUIRES: in memory.
  void VisitBefore(int64_t end);
  void EndPass();
  void Finish(float* out) const;

  const Block& block() const { return block_; }

  // The segments that a block reads; none where its plan does more than to see a range of tokens.
  static Segments SegmentsOf(const Block& block);
  // Floats of the running softmaxes of a block after one segment.
  static int64_t SegmentFloats(const Block& block);
  // Some segments of a block: states [segments][SegmentFloats]. Pages as for Run.
  void RunSegments(const Block& block, Segments segments, const float* qkv, float* states);
  // What Run would write, of the states of all segments.
  void FinishSegments(const Block& block, int64_t num_segments, const float* states, float* out);

 private:
  static constexpr int64_t kNoSegment = -1;
  // One query (token and head of the group) on one page.
  struct Visit {
    int query = 0;
    int64_t page_distance = 0;
    int lo = 0;
    int hi = 0;
    // Distance at which token 0 of the page is seen, for biases; pinned: every token of it.
    int64_t distance = 0;
    bool pinned = false;
  };
  // A chunk that a query's head chose.
  struct ChosenChunk {
    int64_t chunk = 0;
    int query = 0;
    int slots_after = 0;  // chosen chunks from this one up to the query's own
    int offset = 0;       // of the query in its own chunk
    int num_tokens = 0;   // of this chunk that the query sees
  };
  struct ScoredToken {
    float score;
    int64_t token;
  };
  // A query that chooses single tokens.
  struct TokenChoice {
    int query = 0;
    KeyRange candidates;
    std::vector<ScoredToken> best;  // best first
  };
  // A chosen token whose value goes to row `row` of values_.
  struct WantedToken {
    int64_t token;
    int row;
    int query;
  };
  struct Pass {
    const AttentionStage* stage;
    bool reads_tokens;  // the second one of kTopTokens
  };
  struct RowRange {
    int begin = 0;
    int end = 0;
    int size() const { return end - begin; }
  };

  // Rows of the block that a stage speaks of.
  RowRange CoveredRows(const AttentionStage& stage) const;
  void BeginBlock(const Block& block);
  void InitStates(std::vector<float>* states) const;
  void LoadQueries(const float* qkv);
  void FormCocaQuery(const float* q, int64_t position, float* to) const;
  // to [queries][dim] = scaled queries of the rows, turned by one rotation or by their offset in
  // their page.
  void RotateQueries(RowRange rows, const AttentionStage& stage, std::vector<float>* to);
  void RunSinks();

  // Ranges of tokens (context_attention.cc).
  void BeginContext();
  void VisitContext(int64_t page, int64_t next);
  void EndSegment();
  // Folds one segment [queries][dim + 2] into states_.
  void FoldStates(const float* segment);

  // Single tokens (top_token_attention.cc).
  void BeginTokenScores();
  void ScoreTokens(int64_t page);
  void BeginTokenValues();
  void ReadTokenValues(int64_t page);
  void FoldTokens();

  // Chunks (chunk_attention.cc).
  void BeginChunks();
  void VisitChunk(int64_t page, int64_t next);
  // Chooses the chunks of the covered rows for every head of the group.
  void SelectChunks(RowRange rows, const float* qkv);
  void TakeOverPicks(RowRange rows);
  void KeepPicks(RowRange rows, int head);
  void AddChosen(int row, int head, std::span<const int64_t> picks);
  // By chunk, then query: a page that the step completes is read in another form by later rows.
  // Made in the order of queries.
  void SortChosen();
  void RecordPicks(int head, std::span<const ChunkSelector::Pick> ranked);
  // Page `page` of the chunk that `chosen`, all of one chunk, have in common.
  void CollectVisits(std::span<const ChosenChunk> chosen, int64_t page);
  // Pages of the chunk that any of `chosen` sees.
  int64_t NumPagesSeen(std::span<const ChosenChunk> chosen) const;
  // `scores` [page_tokens] of one query.
  void RankTokens(int64_t page, const float* scores, TokenChoice* choice);
  static void RankToken(ScoredToken token, int count, std::vector<ScoredToken>* best);

  struct Page {
    const std::byte* slice;
    const std::byte* next;  // will be visited after it
    PageReader::Form form;
  };
  // rotated_ = the queries of some visits as their page wants them.
  void RotateToPage(std::span<const Visit> visits);
  // Folds visits of one page into their queries.
  void VisitPage(const Page& page, std::span<const Visit> visits);
  // The collected visits of a page of the sequence, each in the form in which its query reads it.
  void VisitPages(int64_t page, int64_t next, bool rotated);

  const AttentionStage& stage() const { return *passes_[pass_].stage; }
  const std::byte* Slice(int64_t page, bool sealed) const {
    const FrameId frame = slice().pages[page - slice().first_page];
    return sealed ? context_->PageSlice(frame, block_.layer, block_.kv_head)
                  : context_->OpenSlice(frame, block_.layer, block_.kv_head);
  }
  bool IsSealedFor(int64_t page, int query) const {
    return context_->IsSealedFor(page, Position(query / group_));
  }
  const SequenceSlice& slice() const { return *block_.context->slice; }
  const AttentionPlan& plan() const { return *slice().plan; }
  int64_t Position(int row) const { return slice().first_position + block_.first_row + row; }
  int query(int row, int head) const { return row * group_ + head; }
  int head_of_model(int head) const {
    return block_.kv_head * context_->group_size() + block_.first_head + head;
  }
  int64_t num_queries() const { return int64_t{block_.num_rows} * group_; }
  int64_t state_floats() const { return dim_ + 2; }
  float* State(int query) {
    return (segment_ == kNoSegment ? states_ : segment_state_).data() + query * state_floats();
  }
  const RopeTables& rope() const { return context_->RopeOf(block_.layer); }
  float Slope(int query) const;
  // Logits depend on positions, not on their distance alone.
  bool slack() const { return context_->setup->coca_query == CocaQuery::kRaw; }

  const CpuAttentionContext* context_ = nullptr;
  Block block_;
  int group_ = 1;  // heads of the block
  int dim_ = 0;
  int page_tokens_ = 0;
  const float* qkv_ = nullptr;

  std::vector<Pass> passes_;
  int pass_ = 0;
  RowRange rows_;               // that the pass covers
  std::vector<int64_t> pages_;  // that the pass reads
  size_t next_page_ = 0;        // of pages_
  std::vector<float> raw_;      // [heads][rows][dim] queries as they are, for the choice of chunks
  std::vector<float> scaled_;   // [queries][dim] scaled, not rotated
  std::vector<float> turned_;   // [queries][dim] scaled, rotated as the stage wants
  std::vector<float> states_;   // [queries][dim + 2]
  int64_t segment_ = kNoSegment;      // that is visited
  std::vector<float> segment_state_;  // [queries][dim + 2] of it
  // Where segments go instead of being folded, from first_segment_ on: [segments][queries][dim + 2]
  float* segment_states_ = nullptr;
  int64_t first_segment_ = 0;
  std::vector<float> rotated_;  // [kPageRows][dim]
  std::vector<int64_t> ends_;   // [rows] candidates of each row
  std::vector<Visit> visits_;
  std::vector<ChosenChunk> chosen_;
  std::vector<ChosenChunk> sorted_;
  std::vector<int> places_;  // of the chunks of chosen_ when sorted
  size_t next_chosen_ = 0;   // of chosen_: the first one of the chunk that is visited
  std::vector<TokenChoice> choices_;
  std::vector<float> token_scores_;  // [kPageRows][page_tokens]
  size_t num_choices_ = 0;           // of choices_; the others are room
  std::vector<WantedToken> wanted_;
  size_t next_wanted_ = 0;
  std::vector<float> values_;  // [wanted tokens][dim]
  PageReader page_reader_;
  ChunkSelector selector_;
};

}  // namespace folio
