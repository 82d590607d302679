#include "tests/cuda/parity_rig.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "engine/backend/cpu/cpu_backend.h"

namespace folio::test {
namespace {

template <typename T>
T Take(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "broken fixture: %s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

}  // namespace

std::vector<float> RandomFloats(int64_t count, std::mt19937_64* random, float scale) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(*random);
  return values;
}

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double apart = 0;
  double length = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i]))
      return std::numeric_limits<double>::infinity();
    apart += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    length += double{b[i]} * b[i];
  }
  return length == 0 ? std::sqrt(apart) : std::sqrt(apart / length);
}

BufferOf<float> Upload(Backend* backend, const std::vector<float>& values) {
  return Take(BufferOf<float>::CopyOf(backend->memory(), values));
}

BufferOf<float> Poisoned(Backend* backend, int64_t count) {
  return Upload(backend, std::vector<float>(count, std::numeric_limits<float>::quiet_NaN()));
}

void Write(Backend* backend, const std::vector<float>& values, float* to) {
  backend->memory()->Write(reinterpret_cast<std::byte*>(to), values.data(),
                           static_cast<int64_t>(values.size() * sizeof(float)));
}

void Poison(Backend* backend, const BufferOf<float>& buffer) {
  Write(backend, std::vector<float>(buffer.size(), std::numeric_limits<float>::quiet_NaN()),
        buffer.data());
}

std::vector<float> Download(Backend* backend, const BufferOf<float>& buffer) {
  const std::span<const float> values = backend->memory()->Read(buffer.data(), buffer.size());
  return {values.begin(), values.end()};
}

std::unique_ptr<Backend> ReferenceBackend() {
  return Take(CreateCpuBackend({.num_threads = 1, .isa = BestFp32Isa()}));
}

KvGeometry AttentionShape::geometry() const {
  ModelShape shape;
  shape.num_layers = num_layers;
  shape.num_heads = num_heads;
  shape.num_kv_heads = num_kv_heads;
  shape.head_dim = head_dim;
  return KvGeometry::Make(shape, page_tokens, dtype);
}

AttentionModel AttentionShape::model() const {
  AttentionModel model;
  model.limits = {trained_length, page_tokens, 0};
  model.kind = alibi ? PositionKind::kAlibi : PositionKind::kRope;
  model.rope.head_dim = model.rope.rotary_dim = head_dim;
  model.rope.trained_length = model.rope.original_length = trained_length;
  return model;
}

AttentionRig::AttentionRig(const AttentionShape& shape, std::unique_ptr<Backend> backend,
                           int max_rows, int64_t kv_bytes, int64_t home_bytes)
    : shape_(shape), backend_(std::move(backend)) {
  KvTiers tiers;
  if (home_bytes > 0) {
    tiers = {.host = backend_->host_tier(), .home_bytes = home_bytes, .step_tokens = max_rows};
  }
  store_ = Take(KvStore::Create(shape.geometry(), kv_bytes, backend_->memory(), tiers));
  AttentionSetup setup;
  setup.geometry = shape.geometry();
  setup.pages = store_->page_memory();
  setup.page_places = store_->page_places();
  setup.frames = store_->frame_memory();
  setup.summaries = store_->summary_memory();
  setup.rotary.theta.assign(shape.head_dim / 2, 0.0f);
  for (int m = 0; m < shape.head_dim / 2 && !shape.alibi; ++m) {
    setup.rotary.theta[m] = static_cast<float>(std::pow(10000.0, -2.0 * m / shape.head_dim));
  }
  for (int head = 0; shape.alibi && head < shape.num_heads; ++head) {
    setup.alibi_slopes.push_back(std::exp2(-8.0f * (head + 1) / shape.num_heads));
  }
  setup.max_step_rows = setup.max_logit_rows = max_rows;
  if (!backend_->SetupAttention(setup).ok()) std::abort();
  const int64_t width = int64_t{max_rows} * shape.head_dim;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    inputs_.push_back(Poisoned(backend_.get(), width * (shape.num_heads + 2 * shape.num_kv_heads)));
    outputs_.push_back(Poisoned(backend_.get(), width * shape.num_heads));
  }
}

AttentionRig::~AttentionRig() {
  for (const auto& stream : streams_) store_->Release(&stream->kv);
  for (SequenceKv& kv : taken_) store_->Release(&kv);
}

void AttentionRig::TakeFrames(const AttentionPlan& plan, int64_t num_tokens) {
  if (!store_->Extend(plan, 0, num_tokens, &taken_.emplace_back()).ok()) std::abort();
}

int AttentionRig::AddStream(const AttentionPlan& plan) {
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->plan = plan;
  return static_cast<int>(streams_.size()) - 1;
}

void AttentionRig::Restart(int stream) {
  store_->Release(&streams_[stream]->kv);
  streams_[stream]->num_tokens = 0;
}

std::vector<float> AttentionRig::Step(const std::vector<Part>& parts,
                                      const std::vector<std::vector<float>>& qkv) {
  StepBatch batch;
  for (const Part& part : parts) {
    Stream& stream = *streams_[part.stream];
    if (!store_->Extend(stream.plan, stream.num_tokens, part.count, &stream.kv).ok()) std::abort();
    SequenceSlice& slice = batch.slices.emplace_back();
    slice.row_begin = batch.num_rows;
    slice.num_rows = part.count;
    slice.first_position = stream.num_tokens;
    slice.plan = &stream.plan;
    slice.first_page = stream.kv.first_page;
    slice.pages = stream.kv.pages;
    slice.sinks = stream.kv.sinks;
    slice.summaries = stream.kv.summaries;
    slice.pending_queries = stream.kv.pending_queries;
    slice.picks = stream.picks;
    if (!backend_->Reserve(slice, batch.slices.size() == 1).ok()) std::abort();
    batch.num_rows += part.count;
  }
  batch.tokens.assign(batch.num_rows, 0);
  const int64_t width = int64_t{shape_.num_heads} * shape_.head_dim;
  for (size_t layer = 0; layer < qkv.size(); ++layer) {
    Poison(backend_.get(), inputs_[layer]);
    Poison(backend_.get(), outputs_[layer]);
    Write(backend_.get(), qkv[layer], inputs_[layer].data());
  }
  if (on_reserved) on_reserved();
  std::vector<Sample> samples;
  backend_->RunStep(
      batch,
      [&](const StepBatch& step) {
        for (size_t layer = 0; layer < qkv.size(); ++layer) {
          backend_->StoreKv(step, static_cast<int>(layer), inputs_[layer].data());
          backend_->SummarizeChunks(step, static_cast<int>(layer), inputs_[layer].data());
          backend_->Attend(step, static_cast<int>(layer), inputs_[layer].data(),
                           outputs_[layer].data());
        }
      },
      &samples);
  std::vector<float> result;
  for (const BufferOf<float>& output : outputs_) {
    const std::vector<float> values = Download(backend_.get(), output);
    result.insert(result.end(), values.begin(), values.begin() + batch.num_rows * width);
  }
  for (const Part& part : parts) {
    Stream& stream = *streams_[part.stream];
    stream.num_tokens += part.count;
    store_->Trim(stream.plan, stream.num_tokens, &stream.kv);
    store_->Seal(stream.plan, stream.num_tokens, &stream.kv);
  }
  return result;
}

}  // namespace folio::test
