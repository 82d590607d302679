#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/attention_registry.h"
#include "engine/backend/backend.h"
#include "engine/kv/kv_store.h"
#include "engine/model/adapter.h"
#include "engine/model/model_config.h"
#include "engine/model/transformer.h"
#include "engine/model/weights.h"
#include "engine/runtime/document_keeper.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/segment_home.h"
#include "engine/sched/scheduler.h"
#include "engine/store/file_system.h"
#include "engine/tokenizer/tokenizer.h"

namespace folio {

// A model ready to run: everything that serving needs and that does not change, wired together.
// Members are listed in the order of construction; later ones borrow earlier ones.
struct LoadedModel {
  ModelConfig config;
  EngineInfo info;
  AttentionModel attention;
  SchedulerOptions scheduler;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Backend> backend;
  WeightPrecision precision;
  Weights weights;
  std::vector<AdapterWeights> adapters;  // in the order of AttentionModel::adapters
  // Of --kv-dir: where pages go that leave memory.
  std::unique_ptr<FileSystem> files;
  std::unique_ptr<SegmentHome> home;
  // And where documents are stored.
  std::unique_ptr<FileSystem> document_files;
  std::unique_ptr<DocumentKeeper> keeper;
  std::unique_ptr<KvStore> store;
  std::unique_ptr<Transformer> transformer;
};

// Loads a Hugging Face directory or a GGUF file. Without `tokenizer_required` a missing
// tokenizer.model is accepted (benchmarks on token ids). Errors: see Engine::Create.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const EngineOptions& options,
                                                       bool tokenizer_required = true);
// The same with a backend that the caller has made.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const EngineOptions& options,
                                                       bool tokenizer_required,
                                                       std::unique_ptr<Backend> backend);

}  // namespace folio
