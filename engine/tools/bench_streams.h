#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/runtime/loaded_model.h"
#include "engine/types/attention_plan.h"
#include "engine/types/sampling.h"

namespace folio {

// Streams of tokens for benchmarks. Their depth is synthetic: the cache is filled with random keys
// and values, which costs the same as a real document and takes seconds instead of hours.
class BenchStreams {
 public:
  // The same token and the same chunks again and again; or others each time, so that no step reads
  // what the one before has read.
  enum class Content { kSame, kVaried };
  explicit BenchStreams(LoadedModel* model, Content content = Content::kSame)
      : model_(model), content_(content) {}
  ~BenchStreams() { Clear(); }

  // A stream of `depth` stored tokens whose prompt has prompt_tokens. Errors: INVALID_ARGUMENT for
  // the strategy, RESOURCE_EXHAUSTED where the cache is too small.
  absl::StatusOr<int> Add(const StrategySpec& strategy, int64_t depth, int64_t prompt_tokens);
  void Clear();

  // One step: `count` tokens of each stream. Returns when it is done.
  absl::Status Step(std::span<const int> streams, int count);
  // Seconds that one step of one token each takes: of `repetitions`, shortest first, after some
  // that do not count; and their median.
  absl::StatusOr<std::vector<double>> DecodeSeconds(std::span<const int> streams, int repetitions);
  absl::StatusOr<double> SecondsPerDecode(std::span<const int> streams, int repetitions);
  // The steps that this runs.
  static int StepsOf(int repetitions);

  const AttentionPlan& plan(int stream) const { return streams_[stream]->plan; }
  int64_t position(int stream) const { return streams_[stream]->position; }
  // Bytes of pages, sinks and summaries that a stream holds.
  int64_t StoredBytes(int stream) const;
  // Bytes of the cache that a decode of the stream reads (bytes_per_decode.h).
  double BytesPerDecode(int stream) const;

  // Every weight that a step must read, the embedding apart.
  double WeightBytes() const;
  // Products and attention of a prompt token at `position`, without the output layer.
  double FlopsPerToken(const AttentionPlan& plan, int64_t position) const;

 private:
  struct Stream {
    AttentionPlan plan;
    SequenceKv kv;
    int64_t position = 0;
  };
  absl::Status MakeSample(int64_t bytes, DType dtype, BufferOf<float>* sample);
  // Bytes [begin, begin + bytes) of the sample, turned by a part of them each time if varied,
  // as summaries always are.
  void CopySample(const BufferOf<float>& sample, int64_t begin, int64_t bytes, std::byte* to);
  absl::Status FillFrames(const FrameMemory& memory, std::span<const FrameId> frames, DType dtype,
                          BufferOf<float>* sample);
  // Pages of the stream from this one on, which a tier below will take.
  absl::Status FillSealedPages(std::span<const FrameId> pages);
  absl::Status FillOpenPages(const SequenceKv& kv, int64_t first_page);
  void MakeCoarseSummaries(const Stream& stream);
  int32_t TokenAt(int64_t position) const;

  LoadedModel* const model_;
  const Content content_;
  // How each step draws: the likeliest token, without log-probabilities.
  const SamplingParams greedy_;
  uint64_t num_copies_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
  // One frame of random numbers each, where the cache lies.
  BufferOf<float> kv_sample_;
  std::vector<std::byte> sealed_sample_;
  BufferOf<float> summary_sample_;
};

}  // namespace folio
