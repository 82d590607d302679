#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/attention/visible_keys.h"
#include "engine/backend/cpu/attention_context.h"
#include "engine/backend/cpu/chunk_selector.h"

namespace folio {

// Attention of some rows of one sequence with one KV head: the queries of the head's group
// together, so that every page is loaded once for all that see it. Pages go in ascending order and
// a row's arithmetic never depends on the rows beside it: any batch and any chunking gives the same
// bits. One per thread.
class AttentionWorker {
 public:
  // Tokens per block so that its running softmaxes stay in the second-level cache.
  static int BlockTokens(const KvGeometry& geometry);

  struct Block {
    const CpuAttentionContext* context = nullptr;
    int first_row = 0;  // of the slice
    int num_rows = 0;
    int kv_head = 0;
    int layer = 0;
  };

  //   qkv  [step rows][(num_heads + 2 num_kv_heads) * head_dim]
  //   out  [step rows][num_heads * head_dim]
  void Run(const Block& block, const float* qkv, float* out);

 private:
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
  // A chunk that a query's head chose. Sorted: by chunk, then query.
  struct ChosenChunk {
    int64_t chunk = 0;
    int query = 0;
    int slots_after = 0;  // chosen chunks from this one up to the query's own
    bool operator<(const ChosenChunk& other) const {
      return chunk != other.chunk ? chunk < other.chunk : query < other.query;
    }
  };
  struct ScoredToken {
    float score;
    int64_t token;
  };
  struct RowRange {
    int begin = 0;
    int end = 0;
    int size() const { return end - begin; }
  };

  // Rows of the block that a stage speaks of.
  RowRange CoveredRows(const AttentionStage& stage) const;
  void LoadQueries(const float* qkv);
  void FormCocaQuery(const float* q, int64_t position, float* to) const;
  // to [queries][dim] = scaled queries of the rows, turned by one rotation or by their offset in
  // their page.
  void RotateQueries(RowRange rows, const AttentionStage& stage, std::vector<float>* to);
  void RunContext(const AttentionStage& stage);
  void RunSinks(const AttentionStage& stage);
  void RunTopTokens(const AttentionStage& stage);
  void RunChunks(const AttentionStage& stage);

  // Chooses the chunks of the covered rows for every head of the group.
  void SelectChunks(RowRange rows, const float* qkv);
  void TakeOverPicks(RowRange rows);
  void KeepPicks(RowRange rows, int head);
  void AddChosen(int row, int head, std::span<const int64_t> picks);
  void RecordPicks(int head, std::span<const ChunkSelector::Pick> ranked);
  // Page `page` of the chunk that `chosen`, all of one chunk, have in common.
  void CollectVisits(std::span<const ChosenChunk> chosen, int64_t page);

  struct Page {
    FrameId frame;
    FrameId next;  // will be visited after it
    bool stored_rotated;
    bool rotated;  // wanted so
  };
  // Folds the collected visits of one page into their queries; `queries` is the base they start
  // from.
  void VisitPage(const Page& page, const std::vector<float>& queries);
  // Best tokens of [begin, end) for one query.
  void ChooseTokens(const float* q, int64_t begin, int64_t end);
  void RankToken(ScoredToken token);
  // Folds one token into a running softmax.
  void FoldToken(int64_t token, float score, float* state);
  void WriteOutput(float* out) const;

  const SequenceSlice& slice() const { return *block_.context->slice; }
  const AttentionPlan& plan() const { return *slice().plan; }
  int64_t Position(int row) const { return slice().first_position + block_.first_row + row; }
  int query(int row, int head) const { return row * group_ + head; }
  int head_of_model(int head) const { return block_.kv_head * group_ + head; }
  float* State(int query) { return &states_[int64_t{query} * (dim_ + 2)]; }
  float Slope(int query) const;
  // Logits depend on positions, not on their distance alone.
  bool slack() const { return context_->setup->coca_query == CocaQuery::kRaw; }

  const CpuAttentionContext* context_ = nullptr;
  Block block_;
  int group_ = 1;
  int dim_ = 0;
  int page_tokens_ = 0;
  const float* qkv_ = nullptr;

  std::vector<float> raw_;      // [heads][rows][dim] queries as they are, for the choice of chunks
  std::vector<float> scaled_;   // [queries][dim] scaled, not rotated
  std::vector<float> turned_;   // [queries][dim] scaled, rotated as the stage wants
  std::vector<float> states_;   // [queries][dim + 2]
  std::vector<float> rotated_;  // [kQueryRows][dim]
  std::vector<int64_t> ends_;   // [rows] candidates of each row
  std::vector<float> value_;    // [dim]
  std::vector<Visit> visits_;
  std::vector<ChosenChunk> chosen_;
  std::vector<ScoredToken> tokens_;
  PageKeys page_keys_;
  ChunkSelector selector_;
};

}  // namespace folio
