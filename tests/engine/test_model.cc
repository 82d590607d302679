#include "tests/engine/test_model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/kv/sequence_slice.h"
#include "engine/tools/make_model.h"
#include "tests/engine/test_seed.h"

namespace folio::test {
namespace {

constexpr int kSkipped = 77;

MakeBackend make_backend = nullptr;
BackendSpeed backend_speed = BackendSpeed::kFast;

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "broken fixture: %s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace

Isa TestIsa() {
  const char* name = std::getenv("FOLIO_TEST_ISA");
  if (name == nullptr) return BestIsa();
  for (const Isa isa : kAllIsas) {
    if (std::string(name) != IsaName(isa)) continue;
    if (CpuSupports(isa)) return isa;
    std::printf("SKIPPED: this CPU has no %s\n", name);
    std::exit(kSkipped);
  }
  CheckOk(absl::InvalidArgumentError("FOLIO_TEST_ISA names no instruction set"));
  std::abort();
}

std::string TestData(const std::string& relative) {
  // Elsewhere when the tests have left the source tree (./dev gpu-bundle).
  const char* moved = std::getenv("FOLIO_TEST_DATA");
  return std::string(moved != nullptr ? moved : FOLIO_TEST_DATA_DIR) + "/" + relative;
}

void UseTestBackend(MakeBackend make, BackendSpeed speed) {
  make_backend = make;
  backend_speed = speed;
}

bool RunsSlowCases() {
  if (std::getenv("FOLIO_TEST_SLOW") != nullptr) return true;
  return OnTestBackend() ? backend_speed == BackendSpeed::kFast : TestIsa() != Isa::kPortable;
}

std::unique_ptr<Backend> NewTestBackend() {
  if (make_backend != nullptr) return make_backend();
  auto backend = CreateCpuBackend({.num_threads = 1, .isa = TestIsa()});
  CheckOk(backend.status());
  return *std::move(backend);
}

bool TestBackendRuns(const std::string& dir) {
  const auto config = LoadModelConfig(dir);
  CheckOk(config.status());
  const auto backend = NewTestBackend();
  return (config->shape.num_experts == 0 || backend->mixes_experts()) &&
         (config->positions != PositionKind::kByLayer || backend->has_layer_views());
}

bool OnTestBackend() { return make_backend != nullptr; }

std::unique_ptr<LoadedModel> LoadTestModel(const std::string& dir, const ModelOptions& options) {
  EngineOptions engine;
  engine.model_dir = dir;
  engine.num_threads = options.num_threads;
  engine.page_tokens = options.page_tokens;
  engine.kv_dtype = options.kv_dtype;
  engine.cpu_isa = options.cpu_isa == "auto" ? IsaName(TestIsa()) : options.cpu_isa;
  // A device takes all of it at once.
  engine.kv_bytes = OnTestBackend() ? int64_t{16} << 20 : options.kv_bytes;
  engine.kv_dir = options.kv_dir;
  engine.kv_disk_bytes = options.kv_disk_bytes;
  engine.weight_dtype = options.weight_dtype;
  engine.weight_group = options.weight_group;
  engine.adapters = options.adapters;
  engine.step_tokens = options.step_tokens;
  engine.prefill_share_tokens = options.step_tokens;
  engine.max_running_requests = options.step_tokens;
  auto model = make_backend != nullptr
                   ? LoadModel(engine, /*tokenizer_required=*/false, make_backend())
                   : LoadModel(engine, /*tokenizer_required=*/false);
  CheckOk(model.status());
  return std::move(*model);
}

void WriteTinyModel(const TinyShape& shape, const std::string& dir, uint64_t seed) {
  MakeModelOptions options;
  ModelShape& s = options.config.shape;
  s.hidden_size = shape.hidden;
  s.intermediate_size = 2 * shape.hidden;
  s.num_layers = shape.layers;
  s.num_heads = shape.heads;
  s.num_kv_heads = shape.kv_heads;
  s.head_dim = shape.head_dim;
  s.vocab_size = shape.vocab;
  s.trained_length = shape.trained_length;
  options.config.bos_token_ids = {1};
  options.config.eos_token_ids = {2};
  options.dtype = DType::kF32;
  options.seed = seed + (TestSeed() << 20);
  options.label = "test";
  CheckOk(MakeRandomModel(options, dir));
}

SequenceSlice Stream::Next(int row, int count) {
  CheckOk(model_->store->Extend(plan_, num_tokens_, count, &kv_));
  SequenceSlice slice = MakeSlice(plan_, kv_, num_tokens_, count);
  slice.row_begin = row;
  return slice;
}

Stream::Stream(Stream&& other) noexcept
    : model_(other.model_),
      plan_(other.plan_),
      kv_(std::exchange(other.kv_, {})),
      num_tokens_(other.num_tokens_) {}

Stream Stream::Fork() {
  Stream fork(model_, plan_);
  fork.kv_ = model_->store->Fork(kv_);
  fork.num_tokens_ = num_tokens_;
  return fork;
}

void Stream::Done(int count) {
  num_tokens_ += count;
  model_->store->EndStep();
  model_->store->Trim(plan_, num_tokens_, &kv_);
  model_->store->Seal(plan_, num_tokens_, &kv_);
}

std::vector<float> AllLogits(LoadedModel* model, const AttentionPlan& plan,
                             const std::vector<int32_t>& tokens, const std::vector<int>& pieces) {
  Stream stream(model, plan);
  std::vector<float> all;
  size_t piece = 0;
  while (stream.num_tokens() < static_cast<int64_t>(tokens.size())) {
    const int64_t known = static_cast<int64_t>(tokens.size());
    const bool prompt = plan.IsPromptRow(stream.num_tokens());
    const int64_t end = prompt ? std::min(known, plan.prompt_tokens) : stream.num_tokens() + 1;
    const int left = static_cast<int>(end - stream.num_tokens());
    const int count = std::min(left, pieces[std::min(piece++, pieces.size() - 1)]);
    StepBatch batch;
    batch.num_rows = count;
    batch.slices.push_back(stream.Next(0, count));
    std::vector<int> rows(count);
    for (int i = 0; i < count; ++i) rows[i] = i;
    const std::span<const int32_t> part(tokens.data() + stream.num_tokens(), count);
    const std::span<const float> logits = model->transformer->Forward(batch, part, rows);
    all.insert(all.end(), logits.begin(), logits.end());
    stream.Done(count);
  }
  return all;
}

float MaxAbsDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  float max = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    if (!(difference <= max)) max = difference;
  }
  return max;
}

std::vector<int32_t> RandomTokens(int count, int vocab, uint64_t seed) {
  std::mt19937_64 random(seed + (TestSeed() << 20));
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  return tokens;
}

}  // namespace folio::test
