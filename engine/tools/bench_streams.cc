#include "engine/tools/bench_streams.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "engine/attention/attention_registry.h"
#include "engine/attention/visible_keys.h"
#include "engine/base/half.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// Tokens by which an empty cache grows.
constexpr int64_t kGrowth = 512;
// Steps before a measurement: a backend may prepare what it repeats.
constexpr int kWarmUp = 3;
constexpr int32_t kToken = 3;

double Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

absl::Status BenchStreams::FillFrames(const FrameMemory& memory, std::span<const FrameId> frames,
                                      DType dtype, BufferOf<float>* sample) {
  if (sample->empty()) {
    std::vector<float> values(memory.frame_bytes / 4);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : values) {
      value = normal(random);
      if (dtype != DType::kBf16) continue;
      const uint32_t pair = uint32_t{FloatToBf16(value)} << 16 | FloatToBf16(normal(random));
      std::memcpy(&value, &pair, sizeof(value));
    }
    FOLIO_ASSIGN_OR_RETURN(*sample, BufferOf<float>::CopyOf(model_->backend->memory(), values));
  }
  for (FrameId frame : frames) {
    model_->backend->memory()->Copy(memory.Frame(frame),
                                    reinterpret_cast<const std::byte*>(sample->data()),
                                    memory.frame_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> BenchStreams::Add(const StrategySpec& strategy, int64_t depth,
                                      int64_t prompt_tokens) {
  FOLIO_ASSIGN_OR_RETURN(const AttentionSpec spec,
                         ResolveAttention({strategy, {}}, {}, model_->attention, {}));
  auto stream = std::make_unique<Stream>();
  stream->plan = PlanFor(spec, model_->attention, prompt_tokens);
  KvStore& store = *model_->store;
  for (int64_t n = 0; n < depth; n += kGrowth) {
    const int64_t count = std::min(kGrowth, depth - n);
    if (!store.Extend(stream->plan, n, count, &stream->kv).ok()) {
      store.Release(&stream->kv);
      return absl::ResourceExhaustedError(
          absl::StrCat("a depth of ", depth, " tokens does not fit the KV cache"));
    }
    store.Trim(stream->plan, n + count, &stream->kv);
  }
  const SequenceKv& kv = stream->kv;
  const DType dtype = store.geometry().dtype;
  FOLIO_RETURN_IF_ERROR(FillFrames(store.frame_memory(), kv.pages, dtype, &kv_sample_));
  FOLIO_RETURN_IF_ERROR(FillFrames(store.frame_memory(), kv.sinks, dtype, &kv_sample_));
  FOLIO_RETURN_IF_ERROR(
      FillFrames(store.summary_memory(), kv.summaries, DType::kF32, &summary_sample_));
  stream->position = depth;
  streams_.push_back(std::move(stream));
  return static_cast<int>(streams_.size()) - 1;
}

void BenchStreams::Clear() {
  for (const auto& stream : streams_) model_->store->Release(&stream->kv);
  streams_.clear();
}

absl::Status BenchStreams::Step(std::span<const int> streams, int count) {
  StepBatch batch;
  for (const int index : streams) {
    Stream& stream = *streams_[index];
    FOLIO_RETURN_IF_ERROR(model_->store->Extend(stream.plan, stream.position, count, &stream.kv));
    SequenceSlice& slice = batch.slices.emplace_back();
    slice.row_begin = batch.num_rows;
    slice.num_rows = count;
    slice.first_position = stream.position;
    slice.plan = &stream.plan;
    slice.first_page = stream.kv.first_page;
    slice.pages = stream.kv.pages;
    slice.sinks = stream.kv.sinks;
    slice.summaries = stream.kv.summaries;
    slice.pending_queries = stream.kv.pending_queries;
    FOLIO_RETURN_IF_ERROR(model_->transformer->Reserve(slice, batch.slices.size() == 1));
    batch.num_rows += count;
    batch.logits.emplace_back().row = batch.num_rows - 1;
  }
  batch.tokens.assign(batch.num_rows, kToken);
  std::vector<Sample> samples;
  model_->transformer->Run(batch, &samples);
  for (const int index : streams) {
    Stream& stream = *streams_[index];
    stream.position += count;
    model_->store->Trim(stream.plan, stream.position, &stream.kv);
  }
  return model_->transformer->status();
}

absl::StatusOr<double> BenchStreams::SecondsPerDecode(std::span<const int> streams,
                                                      int repetitions) {
  std::vector<double> seconds;
  for (int n = 0; n < kWarmUp + repetitions; ++n) {
    const double start = Now();
    FOLIO_RETURN_IF_ERROR(Step(streams, 1));
    if (n >= kWarmUp) seconds.push_back(Now() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

int64_t BenchStreams::StoredBytes(int stream) const {
  const SequenceKv& kv = streams_[stream]->kv;
  const KvFootprint footprint = model_->store->FootprintOf(kv);
  return footprint.device_bytes + footprint.disk_bytes + footprint.summary_bytes;
}

double BenchStreams::BytesPerDecode(int stream) const {
  const AttentionPlan& plan = streams_[stream]->plan;
  const int64_t position = streams_[stream]->position;
  const KvGeometry& g = model_->store->geometry();
  const double per_token = static_cast<double>(g.frame_bytes()) / g.page_tokens;
  double bytes = per_token * static_cast<double>(NumVisibleKeys(plan, position));
  if (!plan.selection.enabled()) return bytes;
  const int64_t chunks = position / plan.selection.chunk_tokens;
  // Every head of a group picks for itself; on random keys they rarely agree.
  const int64_t picks = std::clamp<int64_t>(chunks - 2, 0, plan.selection.num_free_picks);
  const int64_t other_heads = g.num_heads / g.num_kv_heads - 1;
  bytes += per_token * static_cast<double>(other_heads * picks * plan.selection.chunk_tokens);
  return bytes + static_cast<double>(g.summary_frame_bytes()) / kTile * static_cast<double>(chunks);
}

double BenchStreams::WeightBytes() const {
  double bytes = static_cast<double>(model_->weights.bytes());
  if (model_->weights.lm_head.matrix)
    bytes -= static_cast<double>(model_->weights.embedding->bytes());
  return bytes;
}

double BenchStreams::FlopsPerToken(const AttentionPlan& plan, int64_t position) const {
  const ModelShape& s = model_->config.shape;
  const double q = double(s.num_heads) * s.head_dim;
  const double kv = double(s.num_kv_heads) * s.head_dim;
  const double per_layer =
      s.hidden_size * (2 * q + 2 * kv) + 3.0 * s.hidden_size * s.intermediate_size;
  return 2.0 * s.num_layers * per_layer +
         4.0 * s.num_layers * q * static_cast<double>(NumVisibleKeys(plan, position));
}

}  // namespace folio
