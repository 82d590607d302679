#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/cpu/attention_context.h"

namespace folio {

// Summaries of chunks, one query head of one sequence at a time, for every scorer of
// ChunkSelection. Holds scratch space; one per thread.
class ChunkSummarizer {
 public:
  // Collects the queries of the slice's rows for `head` and writes the summary of every chunk that
  // they complete. FLOPs per chunk for LongHeads: 2 w^2 d + 6 w d.
  void Run(const CpuAttentionContext& context, int layer, int head, const float* qkv);

 private:
  struct Chunk {
    int64_t index = 0;
    int layer = 0;
    int head = 0;
    int kv_head = 0;
    int num_pages = 0;
  };
  // One function per scorer; each leaves the summary in result_ (and second_).
  void LongHeads(const Chunk& chunk);
  void MeanKey(const Chunk& chunk);
  void Extremes(const Chunk& chunk);
  void Representatives(const Chunk& chunk);

  // Row of a query among the pending ones of the slice.
  std::byte* PendingRow(int64_t token, int layer, int head) const;
  // Keeps the query in rotated_, in the precision of the cache.
  void StoreQuery(int64_t token, int layer, int head) const;
  void LoadQueries(const Chunk& chunk);
  void Write(const Chunk& chunk, const std::vector<float>& vector, int which);
  // query_ = mean over the chunk's queries of softmax(Ql Kl^T scale) V, not causal.
  void MeanOutput(const Chunk& chunk);
  // Of one page's tokens and of rows of weights_: <Kl_t, query>.
  void ScoreQueries(const Chunk& chunk, int page, const float* queries, int num_queries);
  // weights_ = <Kl_t, query_> of every token.
  void ScoreKeys(const Chunk& chunk, const float* query);
  // result_ = sum over the chunk of weights_[t] Kl_t.
  void AddWeightedKeys(const Chunk& chunk);
  FrameId Page(const Chunk& chunk, int page) const;
  PageNumbers Read(const Chunk& chunk, int page);
  float scale() const { return context_->Scale(*context_->summary_rope); }

  const CpuAttentionContext* context_ = nullptr;
  PageReader pages_;
  std::vector<float> queries_;  // [w][dim], rotated by their offset in the chunk
  std::vector<float> rotated_;  // [kQueryRows][dim]
  std::vector<float> query_;    // [dim], the mean output, which serves as the chunk's query
  std::vector<float> weights_;  // [w], or [kPassQueries][w]
  std::vector<float> mass_;     // [w]
  std::vector<float> partial_;  // [dim]
  std::vector<float> result_;   // [dim]
  std::vector<float> second_;   // [dim]
};

}  // namespace folio
