#include "engine/tools/bench_streams.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "engine/attention/attention_registry.h"
#include "engine/attention/visible_keys.h"
#include "engine/backend/cpu/coarse_summary.h"
#include "engine/backend/cpu/sealed_codec.h"
#include "engine/base/half.h"
#include "engine/base/splitmix.h"
#include "engine/base/status_macros.h"
#include "engine/kv/sequence_slice.h"
#include "engine/tools/bytes_per_decode.h"

namespace folio {
namespace {

// Tokens by which an empty cache grows, at most.
constexpr int64_t kGrowth = 512;
// Steps before a measurement: a backend may prepare what it repeats.
constexpr int kWarmUp = 3;
constexpr int32_t kToken = 3;
// In steps of it a sample is turned: a line of keys.
constexpr int64_t kLineBytes = 64;

double Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

absl::Status BenchStreams::MakeSample(int64_t bytes, DType dtype, BufferOf<float>* sample) {
  if (!sample->empty()) return absl::OkStatus();
  std::vector<float> values(bytes / 4);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : values) {
    value = normal(random);
    if (dtype != DType::kBf16) continue;
    const uint32_t pair = uint32_t{FloatToBf16(value)} << 16 | FloatToBf16(normal(random));
    std::memcpy(&value, &pair, sizeof(value));
  }
  FOLIO_ASSIGN_OR_RETURN(*sample, BufferOf<float>::CopyOf(model_->backend->memory(), values));
  return absl::OkStatus();
}

void BenchStreams::CopySample(const BufferOf<float>& sample, int64_t begin, int64_t bytes,
                              std::byte* to) {
  Memory* const memory = model_->backend->memory();
  const auto* const from = reinterpret_cast<const std::byte*>(sample.data()) + begin;
  int64_t turn = 0;
  // Of summaries that are all the same many chunks are equally good, which no text has.
  if (content_ == Content::kVaried || &sample == &summary_sample_) {
    turn = static_cast<int64_t>(SplitMix64(++num_copies_) % (bytes / kLineBytes)) * kLineBytes;
  }
  memory->Copy(to, from + turn, bytes - turn);
  if (turn > 0) memory->Copy(to + bytes - turn, from, turn);
}

absl::Status BenchStreams::FillFrames(const FrameMemory& memory, std::span<const FrameId> frames,
                                      DType dtype, BufferOf<float>* sample) {
  FOLIO_RETURN_IF_ERROR(MakeSample(memory.frame_bytes, dtype, sample));
  for (const FrameId frame : frames) {
    CopySample(*sample, 0, memory.frame_bytes, memory.Frame(frame));
  }
  return absl::OkStatus();
}

// As the backend of the CPU would seal pages of the sample.
absl::Status BenchStreams::FillSealedPages(std::span<const FrameId> pages) {
  const KvGeometry& g = model_->store->geometry();
  FOLIO_RETURN_IF_ERROR(MakeSample(g.frame_bytes(), g.dtype, &kv_sample_));
  const auto slice_bytes = static_cast<size_t>(g.sealed_slice_bytes());
  const int num_slices = g.num_slices();
  if (sealed_sample_.empty()) {
    sealed_sample_.resize(num_slices * slice_bytes);
    const auto* const open = reinterpret_cast<const std::byte*>(kv_sample_.data());
    for (int slice = 0; slice < num_slices; ++slice) {
      SealSlice(g, open + slice * g.slice_bytes(), sealed_sample_.data() + slice * slice_bytes);
    }
  }
  for (const FrameId page : pages) {
    for (int slice = 0; slice < num_slices; ++slice) {
      const size_t from =
          content_ == Content::kVaried ? SplitMix64(++num_copies_) % num_slices : slice;
      std::memcpy(model_->store->page_memory().Slice(page, slice),
                  sealed_sample_.data() + from * slice_bytes, slice_bytes);
    }
  }
  return absl::OkStatus();
}

// A page that a tier below takes, or that will be sealed, is in a frame of the device, or in slots.
absl::Status BenchStreams::FillOpenPages(const SequenceKv& kv, int64_t first_page) {
  const KvStore& store = *model_->store;
  const KvGeometry& g = store.geometry();
  const std::span<const FrameId> pages =
      std::span(kv.pages).subspan(static_cast<size_t>(first_page - kv.first_page));
  if (store.seals()) {
    FOLIO_RETURN_IF_ERROR(FillSealedPages(pages));
    std::vector<FrameId> frames;
    for (const FrameId page : pages) frames.push_back(store.OpenFrameOf(page));
    return FillFrames(store.frame_memory(), frames, g.dtype, &kv_sample_);
  }
  if (const FrameId* places = store.page_places(); places != nullptr) {
    std::vector<FrameId> frames;
    for (const FrameId page : pages) frames.push_back(places[page]);
    return FillFrames(store.frame_memory(), frames, g.dtype, &kv_sample_);
  }
  FOLIO_RETURN_IF_ERROR(MakeSample(g.frame_bytes(), g.dtype, &kv_sample_));
  for (const FrameId page : pages) {
    for (int slice = 0; slice < g.num_slices(); ++slice) {
      CopySample(kv_sample_, slice * g.slice_bytes(), g.slice_bytes(),
                 store.page_memory().Slice(page, slice));
    }
  }
  return absl::OkStatus();
}

// As the backend of the CPU would once all chunks of a frame are complete.
void BenchStreams::MakeCoarseSummaries(const Stream& stream) {
  const KvGeometry& g = model_->store->geometry();
  if (!g.coarse_summaries) return;
  const SummaryLayout layout = SummaryLayoutOf(stream.plan.selection, g.group_size());
  const FrameMemory frames = model_->store->summary_memory();
  for (const FrameId frame : stream.kv.summaries) {
    MakeCoarseFrame(g, layout, frames.Frame(stream.kv.summaries[0]), frames.Frame(frame));
  }
}

int32_t BenchStreams::TokenAt(int64_t position) const {
  if (content_ == Content::kSame) return kToken;
  const auto vocab = static_cast<uint64_t>(model_->config.shape.vocab_size);
  return static_cast<int32_t>(SplitMix64(static_cast<uint64_t>(position) + 1) % vocab);
}

absl::StatusOr<int> BenchStreams::Add(const StrategySpec& strategy, int64_t depth,
                                      int64_t prompt_tokens) {
  FOLIO_ASSIGN_OR_RETURN(const AttentionSpec spec,
                         ResolveAttention({strategy, {}}, {}, model_->attention, {}));
  auto stream = std::make_unique<Stream>();
  stream->plan = PlanFor(spec, model_->attention, prompt_tokens);
  KvStore& store = *model_->store;
  // Frames beside a tier are for a step.
  const int64_t growth = std::min<int64_t>(kGrowth, model_->scheduler.step_tokens);
  for (int64_t n = 0; n < depth; n += growth) {
    const int64_t count = std::min(growth, depth - n);
    if (!store.Extend(stream->plan, n, count, &stream->kv).ok()) {
      store.Release(&stream->kv);
      return absl::ResourceExhaustedError(
          absl::StrCat("a depth of ", depth, " tokens does not fit the KV cache"));
    }
    store.Trim(stream->plan, n + count, &stream->kv);
    if (!store.tiered() && !store.seals()) continue;
    FOLIO_RETURN_IF_ERROR(FillOpenPages(stream->kv, n / store.geometry().page_tokens));
    store.Seal(stream->plan, n + count, &stream->kv);
    store.EndStep();
  }
  const SequenceKv& kv = stream->kv;
  const DType dtype = store.geometry().dtype;
  if (!store.tiered() && !store.seals()) {
    FOLIO_RETURN_IF_ERROR(FillFrames(store.frame_memory(), kv.pages, dtype, &kv_sample_));
  }
  FOLIO_RETURN_IF_ERROR(FillFrames(store.frame_memory(), kv.sinks, dtype, &kv_sample_));
  FOLIO_RETURN_IF_ERROR(
      FillFrames(store.summary_memory(), kv.summaries, store.geometry().dtype, &summary_sample_));
  MakeCoarseSummaries(*stream);
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
    SequenceSlice& slice =
        batch.slices.emplace_back(MakeSlice(stream.plan, stream.kv, stream.position, count));
    slice.row_begin = batch.num_rows;
    FOLIO_RETURN_IF_ERROR(model_->transformer->Reserve(slice, batch.slices.size() == 1));
    batch.num_rows += count;
    for (int n = 0; n < count; ++n) batch.tokens.push_back(TokenAt(stream.position + n));
    batch.logits.push_back({.row = batch.num_rows - 1, .sampling = &greedy_});
  }
  std::vector<Sample> samples;
  model_->transformer->Run(batch, &samples);
  model_->store->EndStep();
  for (const int index : streams) {
    Stream& stream = *streams_[index];
    stream.position += count;
    model_->store->Seal(stream.plan, stream.position, &stream.kv);
    model_->store->Trim(stream.plan, stream.position, &stream.kv);
    if (model_->store->HasLostPages(stream.kv)) {
      return absl::DataLossError("a page of the cache cannot be read any more");
    }
  }
  return model_->transformer->status();
}

int BenchStreams::StepsOf(int repetitions) { return kWarmUp + repetitions; }

absl::StatusOr<std::vector<double>> BenchStreams::DecodeSeconds(std::span<const int> streams,
                                                                int repetitions) {
  std::vector<double> seconds;
  for (int n = 0; n < StepsOf(repetitions); ++n) {
    const double start = Now();
    FOLIO_RETURN_IF_ERROR(Step(streams, 1));
    if (n >= kWarmUp) seconds.push_back(Now() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

absl::StatusOr<double> BenchStreams::SecondsPerDecode(std::span<const int> streams,
                                                      int repetitions) {
  FOLIO_ASSIGN_OR_RETURN(const std::vector<double> seconds, DecodeSeconds(streams, repetitions));
  return seconds[seconds.size() / 2];
}

int64_t BenchStreams::StoredBytes(int stream) const {
  const SequenceKv& kv = streams_[stream]->kv;
  const KvFootprint footprint = model_->store->FootprintOf(kv);
  return footprint.device_bytes + footprint.host_bytes + footprint.disk_bytes +
         footprint.summary_bytes;
}

double BenchStreams::BytesPerDecode(int stream) const {
  return folio::BytesPerDecode(streams_[stream]->plan, model_->store->geometry(),
                               streams_[stream]->position);
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
