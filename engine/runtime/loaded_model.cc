#include "engine/runtime/loaded_model.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "engine/attention/rope_scaling.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/base/memory_bounds.h"
#include "engine/base/status_macros.h"
#include "engine/base/usable_cpus.h"
#include "engine/model/model_files.h"
#include "engine/model/synthetic_model.h"
#include "engine/runtime/memory_plan.h"
#include "engine/runtime/model_adapters.h"
#include "engine/runtime/model_text.h"
#include "engine/runtime/model_tiers.h"
#include "engine/runtime/model_weights.h"
#include "engine/store/fingerprint.h"
#include "engine/tokenizer/byte_tokenizer.h"

namespace folio {
namespace {

// Models trained on at most this length are test models, whose chunks are small.
constexpr int kShortTrainedLength = 1024;
// Chunks that LongHeads cuts a trained length into by default.
constexpr int kDefaultChunks = 16;
constexpr uint64_t kSyntheticSeed = 1;

// Logits of the scored rows of a step.
constexpr int64_t kScoreLogitBytes = int64_t{64} << 20;

// Where a step may have to read the whole cache from disk.
constexpr int kStepTokensOverDisk = 512;

// There is room for prefills beside as many answers as may run.
int UsualStepTokens(const EngineOptions& options, const Backend& backend) {
  const int least = options.kv_dir.empty() ? 0 : kStepTokensOverDisk;
  return std::max({backend.usual_step_rows(), 2 * options.max_running_requests, least});
}

absl::StatusOr<SchedulerOptions> StepSizes(const EngineOptions& options, const LoadedModel& model) {
  SchedulerOptions sizes;
  sizes.step_tokens =
      options.step_tokens == 0 ? UsualStepTokens(options, *model.backend) : options.step_tokens;
  sizes.prefill_share_tokens = options.prefill_share_tokens == 0
                                   ? std::max(1, sizes.step_tokens / 2)
                                   : options.prefill_share_tokens;
  if (sizes.step_tokens < kMinStepTokens || sizes.step_tokens > kMaxStepTokens) {
    return absl::InvalidArgumentError(absl::StrCat("step_tokens is ", sizes.step_tokens,
                                                   ", must be in [", kMinStepTokens, ", ",
                                                   kMaxStepTokens, "]"));
  }
  if (sizes.prefill_share_tokens < 1 || sizes.prefill_share_tokens > sizes.step_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prefill_share_tokens is ", sizes.prefill_share_tokens, ", must be in [1, step_tokens]"));
  }
  if (options.prefill_slowdown != 0 && !(options.prefill_slowdown > 1)) {
    return absl::InvalidArgumentError(absl::StrCat("prefill_slowdown is ", options.prefill_slowdown,
                                                   ", must be 0 or larger than 1"));
  }
  sizes.prefill_slowdown = options.prefill_slowdown;
  if (options.max_running_requests < 1 || options.max_running_requests > sizes.step_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_running_requests is ", options.max_running_requests, ", must be in [1, step_tokens]"));
  }
  const int64_t rows = kScoreLogitBytes / (int64_t{model.config.shape.vocab_size} * 4);
  sizes.score_rows = static_cast<int>(std::clamp<int64_t>(rows, 16, sizes.step_tokens));
  return sizes;
}

// As many as the backend works best with, but more than 64 only where a chunk of LongHeads has as
// many by default.
int DefaultPageTokens(const ModelShape& shape, const Backend& backend) {
  if (shape.trained_length <= kShortTrainedLength) return 16;
  const int preferred = backend.preferred_page_tokens();
  return shape.trained_length / kDefaultChunks >= preferred ? preferred : 64;
}

absl::StatusOr<int> PageTokens(const EngineOptions& options, const ModelShape& shape,
                               const Backend& backend) {
  if (options.page_tokens == 0) return DefaultPageTokens(shape, backend);
  if (options.page_tokens < kMinPageTokens || options.page_tokens > kMaxPageTokens ||
      options.page_tokens % kTile != 0) {
    return absl::InvalidArgumentError(absl::StrCat("page_tokens is ", options.page_tokens,
                                                   ", must be a multiple of ", kTile, " in [",
                                                   kMinPageTokens, ", ", kMaxPageTokens, "]"));
  }
  return options.page_tokens;
}

absl::StatusOr<KvGeometry> CacheGeometry(const EngineOptions& options, const LoadedModel& model) {
  const ModelShape& shape = model.config.shape;
  const WeightPrecision& weights = model.precision;
  FOLIO_ASSIGN_OR_RETURN(const int page_tokens, PageTokens(options, shape, *model.backend));
  KvGeometry geometry = KvGeometry::Make(shape, page_tokens, DType::kBf16);
  geometry.coarse_summaries = model.backend->scores_coarsely();
  if (options.kv_dtype == "bf16") return geometry;
  if (options.kv_dtype == "int8" || options.kv_dtype == "int4") {
    if (!model.backend->seals_pages()) {
      return absl::InvalidArgumentError(
          absl::StrCat("kv_dtype is '", options.kv_dtype,
                       "', which runs on the CPU backend; this one has fp32 "
                       "and bf16"));
    }
    geometry.sealed_bits = options.kv_dtype == "int8" ? 8 : 4;
    return geometry;
  }
  const bool wide = weights.dtype == DType::kF32 && !weights.integers();
  if (options.kv_dtype == "fp32" || (options.kv_dtype == "auto" && wide)) {
    geometry.dtype = DType::kF32;
  } else if (options.kv_dtype != "auto") {
    return absl::InvalidArgumentError(absl::StrCat("kv_dtype is '", options.kv_dtype,
                                                   "', must be auto, fp32, bf16, int8 or int4"));
  }
  return geometry;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const EngineOptions& options) {
  CpuBackendOptions backend;
  backend.num_threads = options.num_threads > 0 ? options.num_threads : UsableCpus();
  if (options.cpu_isa == "auto") return CreateCpuBackend(backend);
  for (Isa isa : kAllIsas) {
    if (options.cpu_isa != IsaName(isa)) continue;
    backend.isa = isa;
    return CreateCpuBackend(backend);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("cpu_isa is '", options.cpu_isa,
                   "', must be auto, portable, avx2, avx512, avx512_vnni, avx512_bf16 or amx"));
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const EngineOptions& options) {
  const std::string& device = options.device;
  if (device != "auto" && device != "cpu" && device != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("device is '", device, "', must be auto, cpu or cuda"));
  }
  if (device == "cuda" && !options.make_cuda) {
    return absl::FailedPreconditionError(
        "device is cuda, but this program was built without the CUDA toolkit");
  }
  if (device == "cpu" || !options.make_cuda) return MakeCpuBackend(options);
  auto cuda = options.make_cuda();
  if (device == "auto" && absl::IsFailedPrecondition(cuda.status())) return MakeCpuBackend(options);
  return cuda;
}

int MaxLogitRows(const EngineOptions& options, const LoadedModel& model) {
  return options.max_running_requests + model.scheduler.score_rows;
}

// What the cache looks like, and the memory for all of it.
struct CachePlan {
  KvGeometry geometry;
  MemoryPlan memory;
};
absl::StatusOr<CachePlan> PlanCache(const EngineOptions& options, const ModelAdapters& adapters,
                                    const LoadedModel& model) {
  const ModelShape& shape = model.config.shape;
  FOLIO_RETURN_IF_ERROR(CheckTiers(options, model.backend.get()));
  CachePlan plan;
  FOLIO_ASSIGN_OR_RETURN(plan.geometry, CacheGeometry(options, model));
  const int64_t max_inputs =
      std::max<int64_t>({shape.hidden_size, shape.intermediate_size,
                         shape.num_heads * shape.head_dim, adapters.max_rank()});
  MemoryPlanInputs inputs;
  inputs.available = model.backend->memory()->available_bytes();
  inputs.commits_at_once = model.backend->memory()->commits_at_once();
  inputs.limit = inputs.commits_at_once
                     ? MemoryBound{inputs.available, "what is free on the device"}
                     : ReadMemoryBounds().limit;
  inputs.workspace =
      model.backend->WorkspaceBytes(plan.geometry, model.scheduler.step_tokens, max_inputs);
  inputs.kv_bytes = options.kv_bytes;
  inputs.host_bytes = options.kv_host_bytes;
  inputs.host = ReadMemoryBounds().available;
  inputs.step_rows = model.scheduler.step_tokens;
  inputs.logit_rows = MaxLogitRows(options, model);
  inputs.weights = model.precision;
  inputs.adapters = adapters.bytes(model.scheduler.step_tokens);
  FOLIO_ASSIGN_OR_RETURN(plan.memory, PlanMemory(model.config, plan.geometry, inputs));
  return plan;
}

LayerViews ViewsOf(const ModelConfig& config) {
  LayerViews views = config.views;
  if (config.window_rope_base > 0) {
    views.window_rotary = BaseRotary(config.rope, config.window_rope_base);
  }
  return views;
}

absl::Status SetupCache(const EngineOptions& options, const CachePlan& plan, LoadedModel* model) {
  const RopeModel& rope = model->config.rope;
  model->attention = {{model->config.shape.trained_length, plan.geometry.page_tokens, 0},
                      model->config.positions,
                      rope,
                      std::move(model->attention.adapters)};
  FOLIO_ASSIGN_OR_RETURN(const Rotary rotary, CheckpointRotary(rope));
  FOLIO_ASSIGN_OR_RETURN(const KvTiers tiers, SetupTiers(options, plan.geometry, model));
  FOLIO_ASSIGN_OR_RETURN(model->store, KvStore::Create(plan.geometry, plan.memory.kv_pages,
                                                       model->backend->memory(), tiers));
  FOLIO_RETURN_IF_ERROR(model->backend->SetupAttention({
      .geometry = plan.geometry,
      .pages = model->store->page_memory(),
      .frames = model->store->frame_memory(),
      .summaries = model->store->summary_memory(),
      .slices = model->store->slices(),
      .page_places = model->store->page_places(),
      .rotary = rotary,
      .alibi_slopes = model->config.alibi_slopes,
      .coca_query = model->config.coca_query,
      .views = ViewsOf(model->config),
      .max_step_rows = model->scheduler.step_tokens,
      .max_logit_rows = MaxLogitRows(options, *model),
      .vocab_size = model->config.shape.vocab_size,
  }));
  model->info.page_tokens = plan.geometry.page_tokens;
  model->info.kv_dtype = plan.geometry.dtype_name();
  model->info.kv_capacity_bytes = model->store->capacity_bytes();
  model->info.memory_plan = plan.memory.ToString();
  return absl::OkStatus();
}

// The window that the checkpoint was trained with, which transformers applies, too. Else LongHeads
// where the model is long enough for it: it is the strategy that can find anything in a document.
AttentionSpec DefaultAttention(const AttentionModel& model, int sliding_window) {
  if (sliding_window > 0) {
    const StrategySpec strategy = {"sliding_window", {{"window", int64_t{sliding_window}}}};
    auto spec = ResolveAttention({strategy, {}}, {}, model, {});
    if (spec.ok()) return *spec;
  }
  for (const char* name : {"long_heads", "lm_infinite"}) {
    auto spec = ResolveAttention({{name, {}}, {}}, {}, model, {});
    if (spec.ok()) return *spec;
  }
  return {{"full", {}}, model.rope.scheme};
}

std::vector<int32_t> EosTokens(const LoadedModel& model) {
  std::vector<int32_t> tokens = model.config.eos_token_ids;
  const int32_t id = model.tokenizer == nullptr ? -1 : model.tokenizer->eos_id();
  if (id >= 0 && std::find(tokens.begin(), tokens.end(), id) == tokens.end()) tokens.push_back(id);
  return tokens;
}

void Describe(const EngineOptions& options, LoadedModel* model) {
  EngineInfo& info = model->info;
  const std::filesystem::path dir = std::filesystem::path(options.model_dir).lexically_normal();
  info.model_name = (dir.has_filename() ? dir : dir.parent_path()).filename().string();
  info.architecture = model->config.architecture;
  info.num_parameters = model->weights.num_parameters();
  info.weight_dtype = model->precision.name();
  info.synthetic = model->config.synthetic;
  info.shape = model->config.shape;
  info.backend = model->backend->name();
  info.num_threads = model->backend->num_threads();
  info.weight_bytes = model->weights.bytes();
  info.default_attention = DefaultAttention(model->attention, model->config.sliding_window);
  info.catalogue = MakeCatalogue(model->attention);
  info.eos_tokens = EosTokens(*model);
  info.checkpoint_sampling = model->config.sampling;
  info.sliding_window = model->config.sliding_window;
}

// What comes after the weights.
absl::Status FinishModel(const EngineOptions& options, const CachePlan& plan,
                         const ModelAdapters& adapters, const TensorDigests& tensors,
                         LoadedModel* model) {
  FOLIO_RETURN_IF_ERROR(adapters.Load(model));
  FOLIO_RETURN_IF_ERROR(SetupCache(options, plan, model));
  FOLIO_RETURN_IF_ERROR(SetupKeeper(options, plan.geometry, tensors, model));
  const KvGeometry& geometry = plan.geometry;
  model->scheduler.costs =
      WorkCosts::Of(model->config.shape, model->weights.bytes(),
                    geometry.slice_bytes() * geometry.num_slices() / geometry.page_tokens);
  FOLIO_ASSIGN_OR_RETURN(
      model->transformer,
      Transformer::Create(model->config.shape, model->config.style, model->weights,
                          model->backend.get(), model->scheduler.step_tokens,
                          MaxLogitRows(options, *model), {model->adapters, adapters.max_rank()}));
  Describe(options, model);
  return model->backend->status();
}

absl::Status CheckBackend(const LoadedModel& model) {
  const char* lacking = nullptr;
  if (model.config.shape.num_experts > 0 && !model.backend->mixes_experts()) {
    lacking = "mixtures of experts";
  }
  if (model.config.positions == PositionKind::kByLayer && !model.backend->has_layer_views()) {
    lacking = "layers with windows of their own";
  }
  if (lacking == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(model.config.architecture, " has ", lacking, ", which the backend ",
                   model.backend->name(), " does not run; take --device cpu, or another model"));
}

absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const EngineOptions& options,
                                                  bool tokenizer_required,
                                                  std::unique_ptr<Backend> backend) {
  auto model = std::make_unique<LoadedModel>();
  TensorDigests digests;
  model->backend = std::move(backend);
  if (IsSynthetic(options.model_dir)) {
    FOLIO_ASSIGN_OR_RETURN(model->config, SyntheticConfig(options.model_dir));
    FOLIO_ASSIGN_OR_RETURN(model->scheduler, StepSizes(options, *model));
    model->tokenizer = std::make_unique<ByteTokenizer>(model->config.shape.vocab_size);
    FOLIO_ASSIGN_OR_RETURN(
        model->precision,
        ParseWeightPrecision(options.weight_dtype, options.weight_group, DType::kBf16));
    FOLIO_ASSIGN_OR_RETURN(const ModelAdapters adapters,
                           ModelAdapters::Open(options, model->config));
    FOLIO_ASSIGN_OR_RETURN(const CachePlan plan, PlanCache(options, adapters, *model));
    FOLIO_ASSIGN_OR_RETURN(
        model->weights,
        SyntheticWeights(model->config, kSyntheticSeed, model->precision, model->backend.get()));
    FOLIO_RETURN_IF_ERROR(FinishModel(options, plan, adapters, digests, model.get()));
    return model;
  }
  FOLIO_ASSIGN_OR_RETURN(model->config, LoadModelConfig(options.model_dir));
  FOLIO_RETURN_IF_ERROR(CheckBackend(*model));
  FOLIO_ASSIGN_OR_RETURN(model->scheduler, StepSizes(options, *model));
  FOLIO_RETURN_IF_ERROR(OpenModelText(options, tokenizer_required, model.get()));
  FOLIO_ASSIGN_OR_RETURN(const ModelWeights weights,
                         ModelWeights::Open(options, model->config, *model->backend));
  model->precision = weights.precision();
  model->info.weight_conversion = weights.conversion();
  FOLIO_ASSIGN_OR_RETURN(const ModelAdapters adapters, ModelAdapters::Open(options, model->config));
  FOLIO_ASSIGN_OR_RETURN(const CachePlan plan, PlanCache(options, adapters, *model));
  // What stored documents are known by.
  TensorDigests* const wanted = options.kv_dir.empty() ? nullptr : &digests;
  FOLIO_ASSIGN_OR_RETURN(model->weights, weights.Load(model->config, model->backend.get(), wanted));
  FOLIO_RETURN_IF_ERROR(FinishModel(options, plan, adapters, digests, model.get()));
  return model;
}

std::vector<std::string> FilesOf(const EngineOptions& options) {
  std::vector<std::string> paths = {options.model_dir};
  for (const AdapterSource& adapter : options.adapters) paths.push_back(adapter.dir);
  return paths;
}

absl::StatusOr<std::unique_ptr<LoadedModel>> CatchWhileLoading(
    const EngineOptions& options,
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<LoadedModel>>()> load) {
  try {
    const ModelFiles files(FilesOf(options));
    absl::StatusOr<std::unique_ptr<LoadedModel>> model = load();
    if (const std::string changed = files.Changed(); !changed.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          changed, " was changed while the model was read; start again once it is complete",
          model.ok() ? "" : "; then: ", model.status().message()));
    }
    return model;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory left while ", options.model_dir,
                     " was loaded; take a smaller model, or raise what bounds the process: ",
                     ReadMemoryBounds().limit.what));
  } catch (const std::system_error& error) {  // no more threads
    return absl::ResourceExhaustedError(
        absl::StrCat("the system refused a resource while ", options.model_dir, " was loaded (",
                     error.what(), "); raise the limits of the process, or lower --threads"));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const EngineOptions& options,
                                                       bool tokenizer_required) {
  return CatchWhileLoading(options, [&]() -> absl::StatusOr<std::unique_ptr<LoadedModel>> {
    FOLIO_ASSIGN_OR_RETURN(auto backend, MakeBackend(options));
    return Load(options, tokenizer_required, std::move(backend));
  });
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const EngineOptions& options,
                                                       bool tokenizer_required,
                                                       std::unique_ptr<Backend> backend) {
  return CatchWhileLoading(options,
                           [&] { return Load(options, tokenizer_required, std::move(backend)); });
}

}  // namespace folio
